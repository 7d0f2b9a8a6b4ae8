/*
 * Copies between a box of a tensor in global memory and shared memory: cp.async.bulk.tensor and
 * cp.reduce.async.bulk.tensor. They are done at once, which the waits that follow allow. What the
 * box has outside the tensor is zero in shared memory, and is not written. Kernels may make maps,
 * too: tensormap.replace.
 */
#include "exec_internal.h"

#include <string.h>

#include "ptx_tensor.h"

#define UNIT 16u
#define ROW_MOST (SG_TENSOR_BOX * 8u)
#define SHARED_ALIGN 128u

/* Rows of a box: elements that lie together, in the order in which shared memory has them. */
struct box {
    struct sg_tensor_map map;
    unsigned element;              /* bytes */
    uint32_t row, pitch;           /* bytes, of data and from row to row in shared memory */
    uint64_t rows, number;         /* `number`: of the row that `at` is at */
    int64_t first[SG_TENSOR_RANK]; /* coordinates */
    int64_t at[SG_TENSOR_RANK];
    int64_t offset[SG_TENSOR_RANK]; /* of columns: from a pixel to what is read */
    uint32_t count[SG_TENSOR_RANK], done[SG_TENSOR_RANK];
};

static bool map_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct box *b)
{
    const struct sg_operand *x = &in->x[SG_TENSOR_MAP];
    uint64_t address = sg_address_own(x, sg_operand_lane(w, x, lane));
    const void *p = sg_reach(w, in, lane, SG_S_GENERIC, address, sizeof(b->map), 64);
    if (!p)
        return false;
    memcpy(&b->map, p, sizeof(b->map));
    bool columns = in->op == SG_P_TENSOR_LOAD && in->mode;
    if (sg_tensor_sound(&b->map) && b->map.rank == in->vector && b->map.columns == columns)
        return true;
    sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
             "no tensor map of %u dimensions and this kind is at 0x%llx", in->vector,
             (unsigned long long)address);
    return false;
}

static bool box_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct box *b)
{
    memset(b, 0, sizeof(*b));
    if (!map_read(w, in, lane, b))
        return false;
    const struct sg_tensor_map *m = &b->map;
    b->element = sg_tensor_element(m->type);
    b->row = m->box[0] * b->element;
    b->pitch = m->span == 1 ? b->row : m->span * UNIT;
    b->rows = m->columns ? m->box[1] : 1;
    for (unsigned i = 0; i < m->rank; i++) {
        b->first[i] = (int32_t)sg_operand_lane(w, &in->x[SG_TENSOR_AT + i], lane);
        b->at[i] = b->first[i];
        if (m->columns && i && i + 1 < m->rank)
            b->offset[i] = (uint16_t)sg_operand_lane(w, &in->x[SG_TENSOR_OFFSET + i - 1], lane);
        b->count[i] = (m->box[i] + m->step[i] - 1u) / m->step[i];
        if (!m->columns && i)
            b->rows *= b->count[i];
    }
    if (b->first[0] * (int64_t)b->element % UNIT == 0)
        return true;
    sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
             "a box of a tensor begins at byte %lld of a row, no multiple of 16",
             (long long)(b->first[0] * (int64_t)b->element));
    return false;
}

/* Columns go on at the next line of their box, and image, where one ends. */
static void next_pixel(struct box *b)
{
    const struct sg_tensor_map *m = &b->map;
    unsigned i = 1;
    for (; i + 1 < m->rank; i++) {
        b->at[i] += m->step[i];
        if (b->at[i] < (int64_t)m->last[i] + 1 + m->upper[i - 1])
            return;
        b->at[i] = m->lower[i - 1];
    }
    b->at[i] += m->step[i];
}

static void next_row(struct box *b)
{
    const struct sg_tensor_map *m = &b->map;
    b->number++;
    if (m->columns) {
        next_pixel(b);
        return;
    }
    for (unsigned i = 1; i < m->rank; i++) {
        b->at[i] += m->step[i];
        if (++b->done[i] < b->count[i])
            return;
        b->done[i] = 0;
        b->at[i] = b->first[i];
    }
}

/* The part of a row that is in the tensor: where in the row, bytes, address. false: none. */
struct part {
    uint32_t begin, bytes;
    uint64_t address;
};

static bool row_part(const struct box *b, struct part *part)
{
    const struct sg_tensor_map *m = &b->map;
    uint64_t address = m->address;
    for (unsigned i = 1; i < m->rank; i++) {
        int64_t at = b->at[i] + b->offset[i];
        if (at < 0 || at > (int64_t)m->last[i])
            return false;
        address += (uint64_t)at * m->stride[i - 1];
    }
    int64_t begin = b->at[0] < 0 ? -b->at[0] : 0, end = (int64_t)m->last[0] + 1 - b->at[0];
    end = end < m->box[0] ? end : m->box[0];
    if (begin >= end)
        return false;
    *part = (struct part){.begin = (uint32_t)begin * b->element,
                          .bytes = (uint32_t)(end - begin) * b->element,
                          .address = address + (uint64_t)(b->at[0] + begin) * b->element};
    return true;
}

/* Shared memory of a box; swizzling stays inside a row of it. */
struct room {
    unsigned char *host;
    uint64_t address;
};

static bool room_reach(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                       const struct box *b, uint64_t address, struct room *room)
{
    uint64_t bytes = b->rows * b->pitch;
    uint32_t size = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    room->address = address;
    room->host = sg_reach(w, in, lane, SG_S_SHARED, address, size, SHARED_ALIGN);
    return room->host != NULL;
}

static unsigned char *unit_at(const struct box *b, const struct room *room, uint32_t at)
{
    uint64_t offset = b->number * b->pitch + at, address = room->address + offset;
    uint64_t turned = (address >> 7 & (b->map.span - 1u)) * UNIT;
    return room->host + ((address ^ turned) - room->address);
}

static bool load(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct box b,
                 uint64_t to, uint64_t barrier)
{
    struct room room;
    struct part part;
    if (!room_reach(w, in, lane, &b, to, &room))
        return false;
    for (; b.number < b.rows; next_row(&b)) {
        unsigned char row[ROW_MOST] = {0};
        if (row_part(&b, &part)) {
            const void *p = sg_reach(w, in, lane, SG_S_GLOBAL, part.address, part.bytes, 1);
            if (!p)
                return false;
            memcpy(row + part.begin, p, part.bytes);
        }
        for (uint32_t i = 0; i < b.row; i += UNIT)
            memcpy(unit_at(&b, &room, i), row + i, UNIT);
    }
    return sg_mbarrier_complete(w, in, lane, barrier, b.rows * b.row);
}

/* The type of a reduction is the tensor's. */
static bool reduction_of(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                         const struct box *b, struct sg_insn *one)
{
    static const uint8_t types[] = {SG_T_U8,  SG_T_U16, SG_T_U32, SG_T_S32, SG_T_U64,
                                    SG_T_S64, SG_T_F16, SG_T_F32, SG_T_F64, SG_T_BF16};
    *one = *in;
    one->type = types[b->map.type];
    if (in->op == SG_P_TENSOR_STORE || sg_atomic_known(one))
        return true;
    sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
             "a tensor of this type has no such reduction");
    return false;
}

static bool row_store(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                      const struct box *b, const unsigned char *row)
{
    struct part part;
    if (!row_part(b, &part))
        return true;
    unsigned char *p = sg_reach(w, in, lane, SG_S_GLOBAL, part.address, part.bytes, b->element);
    if (!p)
        return false;
    if (in->op == SG_P_TENSOR_STORE)
        memcpy(p, row + part.begin, part.bytes);
    else
        sg_reduce_bytes(in, p, row + part.begin, part.bytes);
    return true;
}

static bool store(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct box b,
                  uint64_t from)
{
    struct room room;
    struct sg_insn one;
    if (!reduction_of(w, in, lane, &b, &one) || !room_reach(w, in, lane, &b, from, &room))
        return false;
    for (; b.number < b.rows; next_row(&b)) {
        unsigned char row[ROW_MOST];
        for (uint32_t i = 0; i < b.row; i += UNIT)
            memcpy(row + i, unit_at(&b, &room, i), UNIT);
        if (!row_store(w, &one, lane, &b, row))
            return false;
    }
    return true;
}

static bool load_all(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                     const struct box *b, uint64_t to)
{
    const struct sg_operand *bar = &in->x[SG_TENSOR_BARRIER], *blocks = &in->x[SG_TENSOR_BLOCKS];
    uint64_t barrier = sg_address_own(bar, sg_operand_lane(w, bar, lane));
    if (blocks->kind == SG_O_NONE)
        return load(w, in, lane, *b, to, barrier);
    SG_FOR_LANES(rank, (uint32_t)sg_operand_lane(w, blocks, lane) & 0xffff)
    if (!load(w, in, lane, *b, sg_shared_of(to, rank), sg_shared_of(barrier, rank)))
        return false;
    return true;
}

SG_HANDLER(sg_do_tensor)
{
    const struct sg_operand *x = &in->x[SG_TENSOR_SHARED];
    SG_FOR_LANES(l, mask)
    {
        struct box b;
        uint64_t shared = sg_address_own(x, sg_operand_lane(w, x, l));
        if (!box_read(w, in, l, &b))
            return SG_FAULT;
        bool done = in->op == SG_P_TENSOR_LOAD ? load_all(w, in, l, &b, shared)
                                               : store(w, in, l, b, shared);
        if (!done)
            return SG_FAULT;
    }
    return SG_NEXT;
}

/* --- tensormap.replace -------------------------------------------------------------------------- */

#define NO_TYPE 255u

/* PTX counts the types in another order than the driver. */
static unsigned type_of(uint64_t element)
{
    static const uint8_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, NO_TYPE, 8, 9};
    return element < sizeof(types) ? types[element] : NO_TYPE;
}

/* One field of a map; false: not a value that it may have. What fields say together is looked at
 * when the map is used. */
static bool field_set(struct sg_tensor_map *m, unsigned field, unsigned i, uint64_t value)
{
    switch (field) {
    case SG_TF_ADDRESS:
        m->address = value;
        return value % UNIT == 0;
    case SG_TF_RANK:
        m->rank = (uint8_t)(value + 1);
        return value < SG_TENSOR_RANK;
    case SG_TF_BOX:
        m->box[i] = (uint16_t)value;
        return value && value <= SG_TENSOR_BOX;
    case SG_TF_SIZE:
        m->last[i] = (uint32_t)value - 1; /* 0 is 2^32 */
        return true;
    case SG_TF_STRIDE:
        if (i + 1 < SG_TENSOR_RANK)
            m->stride[i] = value;
        return i + 1 < SG_TENSOR_RANK && value % UNIT == 0;
    case SG_TF_STEP:
        m->step[i] = i ? (uint8_t)value : 1;
        return value && value <= SG_TENSOR_STEP;
    case SG_TF_ELEMENT:
        m->type = (uint8_t)type_of(value);
        return m->type != NO_TYPE;
    case SG_TF_SWIZZLE:
        m->span = (uint8_t)(1u << (value & 3));
        return value < 4;
    default: /* no interleaved layout, and zeros for what is outside */
        return value == 0;
    }
}

static bool replace(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    const struct sg_operand *x = in->x;
    struct sg_tensor_map m;
    uint64_t address = sg_address_own(&x[SG_TF_MAP], sg_operand_lane(w, &x[SG_TF_MAP], lane));
    uint64_t value = sg_operand_lane(w, &x[SG_TF_VALUE], lane);
    unsigned dimension = (unsigned)sg_operand_lane(w, &x[SG_TF_DIMENSION], lane);
    void *p = sg_reach(w, in, lane, in->space, address, sizeof(m), 64);
    if (!p)
        return false;
    memcpy(&m, p, sizeof(m));
    if (m.mark != SG_TENSOR_MARK) /* the first field of a new one, which begins as zeros */
        m = (struct sg_tensor_map){.mark = SG_TENSOR_MARK, .span = 1};
    if (!field_set(&m, in->mode, dimension,
                   sg_type_size(in->type) == 4 ? (uint32_t)value : value)) {
        sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                 "tensormap.replace: 0x%llx, which the soft GPU's maps do not have",
                 (unsigned long long)value);
        return false;
    }
    memcpy(p, &m, sizeof(m));
    return true;
}

SG_HANDLER(sg_do_tensor_replace)
{
    SG_FOR_LANES(l, mask)
    if (!replace(w, in, l))
        return SG_FAULT;
    return SG_NEXT;
}
