/* What writes more than one register, or the carry. */
#include "exec_float.h"
#include "exec_internal.h"
#include "exec_pure.h"

__extension__ typedef unsigned __int128 wide128;
__extension__ typedef __int128 signed128;

static uint64_t low_bits(uint64_t v, uint32_t bytes)
{
    return bytes >= 8 ? v : v & (((uint64_t)1 << (8 * bytes)) - 1);
}

SG_HANDLER(sg_do_unpack)
{
    unsigned parts = in->operands - 1u;
    const struct sg_operand *whole = &in->x[parts];
    uint64_t room[SG_LANES];
    const uint64_t *s = sg_operand_all(w, whole, room);
    uint32_t bytes = sg_type_size(in->type) / parts;
    SG_FOR_LANES(l, mask)
    {
        uint64_t v = s[l], high = bytes == 8 ? s[l + SG_LANES] : 0;
        for (unsigned i = 0; i < parts; i++) {
            sg_write(w->frame, &in->x[i], l, low_bits(v, bytes));
            v = bytes == 8 ? high : v >> (8 * bytes);
        }
    }
    return SG_NEXT;
}

static bool is_signed(unsigned type)
{
    return type == SG_T_S8 || type == SG_T_S16 || type == SG_T_S32 || type == SG_T_S64;
}

static uint64_t extend(uint64_t v, unsigned type)
{
    switch (type) {
    case SG_T_S8:
        return (uint64_t)(int64_t)(int8_t)v;
    case SG_T_S16:
        return (uint64_t)(int64_t)(int16_t)v;
    case SG_T_S32:
        return (uint64_t)(int64_t)(int32_t)v;
    default:
        return low_bits(v, sg_type_size(type));
    }
}

static bool compare(const struct sg_insn *in, uint64_t a, uint64_t b)
{
    const struct sg_format *f = sg_format_of(in->type);
    if (!f)
        return sg_integer_compare(extend(a, in->type), extend(b, in->type), is_signed(in->type),
                                  in->compare);
    a = low_bits(a, f->bits / 8);
    b = low_bits(b, f->bits / 8);
    if (in->ftz) {
        a = sg_flush(f, a);
        b = sg_flush(f, b);
    }
    return sg_float_compare(f, a, b, in->compare);
}

static bool combine(const struct sg_insn *in, bool t, bool c)
{
    switch (in->combine) {
    case 1:
        return t && c;
    case 2:
        return t || c;
    case 3:
        return t != c;
    default:
        return t;
    }
}

SG_HANDLER(sg_do_setp)
{
    uint64_t room[3][SG_LANES];
    const uint64_t *a = sg_operand_all(w, &in->x[2], room[0]);
    const uint64_t *b = sg_operand_all(w, &in->x[3], room[1]);
    const uint64_t *c = room[2];
    if (in->combine)
        c = sg_operand_all(w, &in->x[4], room[2]);
    bool pair = in->type == SG_T_F16X2 || in->type == SG_T_BF16X2;
    SG_FOR_LANES(l, mask)
    {
        bool with = in->combine && (c[l] & 1);
        bool t = compare(in, a[l], b[l]);
        bool u = pair ? compare(in, a[l] >> 16, b[l] >> 16) : !t;
        sg_write(w->frame, &in->x[0], l, combine(in, t, with));
        sg_write(w->frame, &in->x[1], l, combine(in, u, with));
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_logic_test)
{
    uint64_t room[5][SG_LANES];
    const uint64_t *s[5];
    for (unsigned i = 0; i < 5; i++)
        s[i] = sg_operand_all(w, &in->x[i + 2], room[i]);
    SG_FOR_LANES(l, mask)
    {
        uint32_t d = sg_logic3((uint32_t)s[0][l], (uint32_t)s[1][l], (uint32_t)s[2][l],
                               (uint32_t)s[3][l]);
        bool with = s[4][l] & 1;
        sg_write(w->frame, &in->x[0], l, d);
        sg_write(w->frame, &in->x[1], l, combine(in, d != 0, with));
    }
    return SG_NEXT;
}

static void set_carry(struct sg_warp *w, unsigned lane, bool carry)
{
    w->carry = (w->carry & ~(1u << lane)) | (uint32_t)carry << lane;
}

/* A subtraction adds the complement, as cards do: the carry that it leaves and takes is 1 where it
 * borrows nothing. The compiler's division of __int128 reads it by an addc. */
SG_HANDLER(sg_do_add_carry)
{
    uint64_t room[2][SG_LANES];
    const uint64_t *a = sg_operand_all(w, &in->x[1], room[0]);
    const uint64_t *b = sg_operand_all(w, &in->x[2], room[1]);
    uint32_t bytes = sg_type_size(in->type);
    SG_FOR_LANES(l, mask)
    {
        bool adds = in->op == SG_P_ADDC;
        wide128 x = low_bits(a[l], bytes), y = low_bits(adds ? b[l] : ~b[l], bytes);
        wide128 sum = x + y + (in->mode & 2 ? w->carry >> l & 1 : !adds);
        if (in->mode & 1)
            set_carry(w, l, (sum >> (8 * bytes)) & 1);
        sg_write(w->frame, &in->x[0], l, low_bits((uint64_t)sum, bytes));
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_mad_carry)
{
    uint64_t room[3][SG_LANES];
    const uint64_t *a = sg_operand_all(w, &in->x[1], room[0]);
    const uint64_t *b = sg_operand_all(w, &in->x[2], room[1]);
    const uint64_t *c = sg_operand_all(w, &in->x[3], room[2]);
    uint32_t bytes = sg_type_size(in->type);
    SG_FOR_LANES(l, mask)
    {
        uint64_t x = extend(a[l], in->type), y = extend(b[l], in->type);
        wide128 product = is_signed(in->type) ? (wide128)((signed128)(int64_t)x * (int64_t)y)
                                              : (wide128)x * y;
        if ((in->mode >> 2 & 3) == SG_H_HI)
            product >>= 8 * bytes;
        unsigned carry = in->mode & 2 ? w->carry >> l & 1 : 0;
        wide128 sum = (wide128)low_bits((uint64_t)product, bytes) + low_bits(c[l], bytes) + carry;
        if (in->mode & 1)
            set_carry(w, l, (sum >> (8 * bytes)) & 1);
        sg_write(w->frame, &in->x[0], l, low_bits((uint64_t)sum, bytes));
    }
    return SG_NEXT;
}
