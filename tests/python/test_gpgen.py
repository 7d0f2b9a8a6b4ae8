"""The generator: what it writes for one function of each mode, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import (  # noqa: E402
    emit_client,
    emit_stubs,
    emit_tables,
    emit_wire,
    emit_worker,
    header,
    param,
    spec,
    spec_load,
)

EVENT = """\
[cuEventCreate]
id = 1
since = 2000
mode = "async-create"
params = [
  "CUevent *phEvent : create",
  "unsigned int Flags",
]

[cuEventRecord]
id = 2
since = 2000
ptsz = 7000
mode = "async"
params = [
  "CUevent hEvent",
  "CUstream hStream",
]

[cuEventElapsedTime_v2]
id = 3
api = "cuEventElapsedTime"
since = 12080
mode = "sync"
params = [
  "float *pMilliseconds : out",
  "CUevent hStart",
  "CUevent hEnd",
]

[cuThing]
id = 4
since = 9000
mode = "cached"
params = [
  "unsigned int n",
  "const int *values : in[n]",
  "int *sum : out optional",
]

[cuOld]
id = 5
since = 2000
mode = "refuse"
reason = "not yet"
params = [
  "int x",
]
"""


def load(folder: Path, text: str, name: str = "event.toml") -> spec.Spec:
    (folder / name).write_text(text)
    return spec_load.load(folder)


@pytest.fixture
def small(tmp_path: Path) -> spec.Spec:
    return load(tmp_path, EVENT)


def test_structures_follow_the_parameters(small: spec.Spec) -> None:
    text = emit_wire.messages(small)
    assert "struct gp_req_cuEventRecord {\n    struct gp_header h;\n    uint64_t hEvent;\n" in text
    assert "struct gp_rep_cuEventElapsedTime_v2 {\n    struct gp_reply r;\n    float pMill" in text
    assert "    unsigned int n;\n    uint32_t n_values;\n    uint32_t has_sum;\n};" in text
    assert "gp_rep_cuEventRecord" not in text


def test_decoders_check_counts_and_ends(small: spec.Spec) -> None:
    text = emit_wire.decode_source(small)
    assert "if (!spans(n, sizeof(int), q->n_values))\n        return false;" in text
    assert "return h->size == gp_align8(at);" in text
    assert "return h->size == sizeof *q;" in text


def test_stubs_send_or_refuse(small: spec.Spec) -> None:
    text = emit_stubs.stubs(small)
    assert "GPC_EXPORT CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)" in text
    assert "return gpc_refuse(GP_OP_cuOld);" in text
    wire = emit_client.wire_source(small)
    assert "q.phEvent = gpc_handle_new(GP_HANDLE_EVENT, gpc_call_index(&call));" in wire
    assert "r = gpc_call_cached(&call);" in wire
    assert "if (sum)\n        *sum = rep.sum;" in wire


def test_dispatch_calls_the_driver_and_answers(small: spec.Spec) -> None:
    text = emit_worker.dispatch(small)
    assert "r = s->driver->cuEventCreate(&phEvent, a.q->Flags);" in text
    assert "gpw_handle_put(s, GP_HANDLE_EVENT, a.q->phEvent, (uint64_t)phEvent, r);" in text
    assert "r = s->driver->cuThing(a.q->n, (" not in text, "a const pointer needs no cast"
    assert "r = s->driver->cuThing(a.q->n, a.values, a.q->has_sum ? &sum : NULL);" in text


def test_tables(small: spec.Spec) -> None:
    table = emit_tables.proc_table(small)
    row = '{"cuEventElapsedTime", 12080, 0, GP_OP_cuEventElapsedTime_v2, '
    assert f"{row}(void *)(uintptr_t)&cuEventElapsedTime_v2}}" in table
    row = '{"cuEventRecord", 7000, 1, GP_OP_cuEventRecord, '
    assert f"{row}(void *)(uintptr_t)&cuEventRecord_ptsz}}" in table
    assert "    cuEventRecord_ptsz;\n" in emit_tables.linker_map(small)


def test_captures_forbid_nothing_that_is_part_of_them(small: spec.Spec) -> None:
    """A thread's calls are made as captures allow them, but for these, which they always do."""
    named = {f.name: f for f in spec_load.load(ROOT / "proto" / "spec").functions}
    free = ["cuEventRecord", "cuMemsetD8Async", "gp_launch", "gp_copy", "gp_host_function"]
    free += ["cuStreamWaitEvent", "cuStreamIsCapturing", "cuStreamEndCapture", "cuMemAllocAsync"]
    assert [name for name in free if not named[name].in_capture] == []
    bound = ["cuMemAlloc_v2", "cuMemFree_v2", "cuEventQuery", "cuStreamQuery", "gp_module_load"]
    bound += ["cuStreamSynchronize", "cuStreamDestroy_v2", "gp_pinned_open", "cuGraphExecDestroy"]
    assert [name for name in bound if named[name].in_capture] == []
    assert ".capture = GP_CAPTURE_JOINS" in emit_wire.ops_source(small)


def test_the_hash_changes_with_what_travels(tmp_path: Path, small: spec.Spec) -> None:
    before = emit_wire.spec_hash(small)
    after = emit_wire.spec_hash(load(tmp_path, EVENT.replace("unsigned int Flags", "int Flags")))
    assert before != after
    same = emit_wire.spec_hash(load(tmp_path, EVENT.replace("not yet", "another reason")))
    assert same == before


# what is changed, into what, the text whose last line is to be named, what is said
BAD = [
    ('mode = "refuse"', 'mode = "later"', 'mode = "later"', "unknown mode 'later'"),
    ("id = 5", "id = 4", "id = 4", "id 4 is already that of cuThing"),
    ("in[n]", "in[m]", "in[m]", "no parameter 'm' for the length of 'values'"),
    ("in[n]", "inn[n]", "inn[n]", "unknown word 'inn[n]'"),
    ('reason = "not yet"\n', "", 'mode = "refuse"', "a refused function needs a reason"),
    ("float *pMilliseconds : out", "float *pMilliseconds", "float *pMs", "say what 'pMs' points"),
    ("CUevent *phEvent : create", "int *phEvent : create", "int *ph", "'int' is no kind of handle"),
    ("since = 9000", 'since = "9000"', 'since = "9000"', "'since' must be int"),
    ("since = 9000", "sinse = 9000", "sinse", "unknown key 'sinse'"),
    ("id = 4", "id = 70000", "id = 70000", "id 70000 is not in 1..65535"),
    ("const int *values : in[n]", "const void *values : in", "void *values", "needs a length"),
    ("id = 5", "id = 5\ncore = true", "core", "is not sent to anybody"),
    ("id = 5", "id = 5\nlater = true", "later", "is no notice"),
    ("id = 5", "id = 5\nfirst_waits = true", "first_waits", "has no calls to wait for"),
    ("id = 5", "id = 5\nblocks = false", "blocks", "blocks nobody"),
    ("id = 5", "id = 5\nquiet = true", "quiet", "is not sent"),
    ("id = 5", "id = 5\ntidies = true", "tidies", "takes no free memory"),
    ("id = 5", 'id = 5\nfreed = "x == 1"', "freed", "nobody waits"),
    ("id = 5", "id = 5\nstalls = true", "stalls", "is not sent to a GPU"),
    ("ptsz = 7000", 'ptsz = 7000\nwork = "kernel"\nquiet = true', "quiet", "puts work on the GPU"),
    ('mode = "refuse"', 'mode = "custom"', 'mode = "custom"', "says which messages it sends"),
    ('mode = "refuse"', 'mode = "bulk"\nsends = ["cuNo"]', "cuNo", "'cuNo' is no message that a"),
    ('mode = "refuse"', 'mode = "bulk"\nsends = ["@no"]', "@no", "sets.toml has no set 'no'"),
    ('mode = "refuse"', 'mode = "local"\nsends = ["cuThing"]', "sends", "nobody writes by hand"),
    ('mode = "refuse"', 'mode = "alias"', 'mode = "alias"', "an alias says of which entry"),
    ("id = 5", 'id = 5\nalias = "cuThing"', 'mode = "refuse"', "an alias says of which entry"),
    ('mode = "refuse"', 'mode = "alias"\nalias = "cuNo"', "cuNo", "'cuNo' is no entry that does"),
    ('mode = "refuse"', 'mode = "alias"\nalias = "cuThing"', "alias = ", "has other parameters"),
    ("id = 5", 'id = 5\ncapture = "begins"', "capture", "no stream is named whose capture"),
    ("ptsz = 7000", 'ptsz = 7000\nwork = "move"', "work", "a move has two ends"),
    ("ptsz = 7000", 'ptsz = 7000\ncapture = "stops"', "capture", "unknown capture 'stops'"),
    ("id = 5", 'id = 5\nfile = { server = "x" }', "file", "unknown file 'server'"),
    ("id = 5", 'id = 5\nforgets = ["cuOld"]', "forgets", "'cuOld' is no cached function"),
    ("ptsz = 7000", 'ptsz = 7000\nwaits_for = "hStream"', "waits_for", "nobody waits for a async"),
    ("since = 12080", 'since = 12080\nwaits_for = "hEnd"', "waits_for", "has nothing to fill"),
    ("ptsz = 7000", "ptsz = 7000\nidle = true", "idle", "only what ends one object"),
    ("since = 9000", 'since = 9000\nworker = "own"', "worker = ", "unknown worker 'own'"),
    (
        "since = 9000",
        'since = 9000\nworker = "custom"\ncalls = "cuX()"',
        "calls",
        "a custom handler does that itself",
    ),
    ("since = 9000", 'since = 9000\ncalls = "x = 3"', "calls", "is no call of the driver's"),
    ("since = 9000", 'since = 9000\ncalls = "gpw_x(n)"', "calls", "for this entry alone"),
    ("id = 5", "id = 5\ntells = true", "tells", "the worker sees no refuse function"),
    ("unsigned int n", "unsigned int n : own[1]", "int n", "'own' is for device addresses"),
    ("int x", "int x : arena[4]", "int x", "'arena' is for a uint64_t alone"),
    ("int x", "CUstream x : anew", "CUstream x", "'anew' is for events"),
    ("int x", "CUdeviceptr x : device", "CUdeviceptr x", "'device' is for device addresses"),
    ("int x", "int x : flags", "int x", "'flags' needs an expression"),
    ("int x", "int x : zero[1]", "int x", "'zero' takes no expression"),
    ("int x", "int *x : nonzero", "int *x", "'nonzero' is for values, 'int *' is none"),
]


@pytest.mark.parametrize(("old", "new", "where", "says"), BAD, ids=[b[3] for b in BAD])
def test_a_bad_spec_names_its_line(
    tmp_path: Path, old: str, new: str, where: str, says: str
) -> None:
    changed = EVENT.replace(old, new).replace('pMilliseconds"', 'pMs"')
    assert changed != EVENT
    with pytest.raises(param.SpecError) as caught:
        load(tmp_path, changed)
    lines = [number for number, line in enumerate(changed.splitlines(), 1) if where in line]
    assert str(caught.value).startswith(f"{tmp_path / 'event.toml'}:{lines[-1]}: ")
    assert says in str(caught.value)


def test_facts_of_operations_are_read_from_their_parameters(tmp_path: Path) -> None:
    text = (
        '[cuGraphClone]\nid = 1\nmode = "sync"\n'
        'params = [\n  "CUgraph *clone : create",\n  "CUgraph from",\n]\n'
        '\n[cuGraphExecDestroy]\nid = 2\nmode = "async"\n'
        'params = [\n  "CUgraphExec exec : destroy",\n]\n'
        '\n[cuGraphLaunch]\nid = 3\nmode = "async"\nwork = "graph"\n'
        'params = [\n  "CUgraphExec exec",\n  "CUstream stream",\n]\n'
    )
    table = emit_wire.ops_source(load(tmp_path, text))
    clone, destroy, launch = table.split("[GP_OP_cu")[1:]
    assert ".graph_made = GP_HANDLE_GRAPH," in clone
    assert ".graph_from_at = offsetof(struct gp_req_cuGraphClone, from)," in clone
    assert "graph_exec_at" not in clone
    assert ".graph_ended_at = offsetof(struct gp_req_cuGraphExecDestroy, exec)," in destroy
    assert "graph_run_at" not in destroy
    assert ".stream_at = offsetof(struct gp_req_cuGraphLaunch, stream)," in launch
    assert ".graph_run_at = offsetof(struct gp_req_cuGraphLaunch, exec)," in launch
    assert ".work = GP_WORK_GRAPH," in launch


WORKER = """\
[cuStreamWait]
id = 1
mode = "sync"
waits_for = "stream"
params = [
  "CUstream stream",
]

[cuModuleUnload]
id = 2
mode = "async"
idle = true
params = [
  "CUmodule module : destroy",
]

[gp_put]
id = 3
mode = "async"
capture = "refuses"
calls = "cuMemcpyHtoDAsync_v2(to, data, bytes, stream)"
params = [
  "CUdeviceptr to : device[bytes]",
  "uint32_t bytes",
  "const void *data : in[bytes]",
  "CUstream stream",
]

[cuSetAccess]
id = 4
mode = "sync"
worker = "noted"
params = [
  "CUdeviceptr ptr : own[size]",
  "size_t size",
  "const CUmemAccessDesc *list : in[count]",
  "size_t count",
  "int kind : among[2|5]",
]
"""


def test_what_the_worker_does_by_words(tmp_path: Path) -> None:
    described = load(tmp_path, WORKER)
    text = emit_worker.dispatch(described)
    handlers = emit_worker.handlers(described)
    assert (
        "r = gpw_answer_after_stream(s, gpw_token_of(h), stream, gpw_answer_cuStreamWait);" in text
    )
    assert (
        "gpw_functions_forget(s);\n    gpw_end_when_none_blocked(s, now_cuModuleUnload, mod" in text
    )
    assert "r = idle_cuModuleUnload(s, module);" in text
    put = text.split("static int do_gp_put(")[1]
    assert "gpw_memory_is_device(s, a.q->to, a.q->bytes) ? CUDA_SUCCESS" in put
    assert "r = gpw_not_capturing(s, stream);" in put
    assert "r = s->driver->cuMemcpyHtoDAsync_v2(a.q->to, a.data, a.q->bytes, stream);" in put
    access = text.split("static int do_cuSetAccess(")[1]
    assert "gpw_memory_is_clients(s, a.q->ptr, a.q->size) ? CUDA_SUCCESS" in access
    assert "a.q->kind == 2 || a.q->kind == 5 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE" in access
    assert "gpw_access_take(s, a.list, a.q->n_list / sizeof *a.list, own_list, " in access
    assert "r = gpw_noted_cuSetAccess(s, a.q->ptr, a.q->size, own_list, a.q->count," in access
    assert "CUresult gpw_noted_cuSetAccess(struct gpw_session *s, CUdeviceptr ptr, " in handlers
    assert "gpw_cuModuleUnload" not in handlers


SHARED = """\
[gp_write]
id = 1
mode = "async"
calls = "gpw_bytes_copy(to, data, bytes)"
params = [
  "uint64_t to : captured[bytes]",
  "uint32_t bytes",
  "const void *data : in[bytes]",
]

[gp_read]
id = 2
mode = "sync"
calls = "gpw_bytes_copy(data, from, bytes)"
params = [
  "uint64_t from : captured[bytes]",
  "uint32_t bytes",
  "void *data : out[bytes]",
]

[gp_fetch]
id = 3
mode = "sync"
waits_for = "stream"
calls = "cuMemcpyDtoHAsync_v2(offset, from, bytes, stream)"
params = [
  "CUdeviceptr from : device[bytes]",
  "CUstream stream",
  "uint64_t offset : arena[bytes]",
  "uint32_t bytes",
]

[cuEventRecord]
id = 4
mode = "async"
params = [
  "CUevent event : anew",
]

[cuCtxRecordEvent]
id = 5
mode = "async"
needs = "init"
params = [
  "CUcontext context",
  "CUevent event : anew",
]
"""


def test_what_several_messages_share(tmp_path: Path) -> None:
    text = emit_worker.dispatch(load(tmp_path, SHARED))
    assert "r = gpw_bytes_copy(s, at_to, a.data, a.q->bytes);" in text
    assert "r = gpw_bytes_copy(s, data, at_from, a.q->bytes);" in text
    assert (
        "(at_to = gpw_captured_find(s, a.q->to, a.q->bytes)) ? CUDA_SUCCESS : CUDA_ERROR_INV"
        in text
    )
    fetch = text.split("static int do_gp_fetch(")[1]
    assert fetch.index("gpw_arena_at(s, a.q->offset, a.q->bytes)") < fetch.index("answer_prepare")
    assert (
        "r = gpw_answer_submitted(s, answer, stream, s->driver->cuMemcpyDtoHAsync_v2(at_offset,"
        in fetch
    )
    assert "r = gpw_event_anew(s, event);\n" in text
    assert "r = gpw_event_anew_in(s, context, event);\n" in text


def test_a_bad_list_of_forms_names_its_line(tmp_path: Path) -> None:
    text = 'since = 2000\nreason = "old"\nforms = [\n  "1 cuA(int x)",\n  "cuB(int x)",\n]\n'
    with pytest.raises(param.SpecError, match=r"event.toml:5: 'cuB\(int x\)' is no id and proto"):
        load(tmp_path, text)
    with pytest.raises(param.SpecError, match=r"event.toml:5: cuB: id 1 is already that of cuA"):
        load(tmp_path, text.replace('"cuB', '"1 cuB'))
    with pytest.raises(param.SpecError, match=r"exactly 'since', 'forms' and 'reason'"):
        load(tmp_path, text.replace("reason", "mode"))
    assert [f.reason for f in load(tmp_path, text.replace('"cuB', '"2 cuB')).cuda] == ["old"] * 2


def test_forms_that_give_one_error(tmp_path: Path) -> None:
    text = (
        'since = 2000\ndoc = "Is old."\nanswers = "CUDA_ERROR_INVALID_CONTEXT"\n'
        'forms = [\n  "1 cuA(CUdeviceptr_v1 *at, unsigned int n)",\n]\n'
    )
    loaded = load(tmp_path, text)
    assert [(f.mode, f.doc) for f in loaded.cuda] == [("local", "Is old.")]
    code = emit_stubs.stubs(loaded)
    assert "(void)n;" in code
    assert "if (r == CUDA_SUCCESS && at)\n        *at = 0;" in code
    assert "return r ? r : CUDA_ERROR_INVALID_CONTEXT;" in code


def test_forms_that_look_at_an_object_first(tmp_path: Path) -> None:
    text = (
        'since = 2000\ndoc = "Is old."\nanswers = "CUDA_ERROR_INVALID_CONTEXT"\n'
        'not_live = "CUDA_ERROR_INVALID_HANDLE"\n'
        'forms = [\n  "1 cuA(CUdeviceptr_v1 *at, CUarray of)",\n]\n'
    )
    code = emit_stubs.stubs(load(tmp_path, text))
    assert "(void)of;" not in code
    looked = code.index("!gpc_handle_live(GP_HANDLE_ARRAY, (uint64_t)of))")
    assert code.index("*at = 0;") < looked < code.index("return CUDA_ERROR_INVALID_HANDLE;")


def test_what_a_call_sends_and_whether_it_waits(tmp_path: Path) -> None:
    text = EVENT + (
        '\n[cuMany]\nid = 6\nmode = "custom"\nsends = ["@both"]\n'
        '\n[cuFew]\nid = 7\nmode = "custom"\nsends = ["cuEventRecord"]\n'
        '\n[cuSame]\nid = 8\nmode = "alias"\nalias = "cuMany"\n'
    )
    (tmp_path / "sets.toml").write_text('both = ["cuEventRecord", "cuThing"]\n')
    many = load(tmp_path, text)
    said = {f.name: (len(many.sent(f)), many.waits(f)) for f in many.cuda}
    assert said == {
        "cuEventCreate": (1, "no"),
        "cuEventRecord": (1, "no"),
        "cuEventElapsedTime_v2": (1, "yes"),
        "cuThing": (1, "once"),
        "cuOld": (0, "no"),
        "cuMany": (2, "may"),
        "cuFew": (1, "no"),
        "cuSame": (2, "may"),
    }


def test_sticky_errors_are_said_once(tmp_path: Path, small: spec.Spec) -> None:
    (tmp_path / "errors.toml").write_text(
        '[CUDA_SUCCESS]\nvalue = 0\ntext = "no error"\n'
        '\n[CUDA_ERROR_ASSERT]\nvalue = 710\ntext = "assert"\nsticky = true\n'
    )
    text = emit_tables.errors_header(spec_load.load(tmp_path))
    assert "    case 710: /* CUDA_ERROR_ASSERT */\n        return 1;" in text
    assert "case 0:" not in text
    (tmp_path / "errors.toml").write_text('[A]\nvalue = 1\ntext = "a"\nsticky = 3\n')
    with pytest.raises(param.SpecError, match=r"errors.toml:1: A: needs 'value' and 'text'"):
        spec_load.load(tmp_path)


def flat(*prototypes: str) -> str:
    return "\n".join(f"CUresult {p};" for p in prototypes)


WHOLE = (
    "cuEventCreate(CUevent *phEvent, unsigned int Flags)",
    "cuEventRecord(CUevent hEvent, CUstream hStream)",
    "cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)",
    "cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)",
    "cuThing(unsigned int n, const int *values, int *sum)",
    "cuOld(int x)",
)


def test_the_header_agrees(small: spec.Spec) -> None:
    header.check(small, flat(*WHOLE))


def test_a_function_that_the_spec_lacks(small: spec.Spec) -> None:
    with pytest.raises(param.SpecError, match=r"cuNew\(int x\): the spec does not name"):
        header.check(small, flat(*WHOLE, "cuNew(int x)"))


def test_a_function_that_the_header_lacks(small: spec.Spec) -> None:
    with pytest.raises(param.SpecError, match=r"event.toml:\d+: cuOld: cuda.h has no such"):
        header.check(small, flat(*WHOLE[:-1]))


def test_another_signature(small: spec.Spec) -> None:
    with pytest.raises(param.SpecError, match=r"event.toml:4\d: cuOld: cuda.h declares \(long x\)"):
        header.check(small, flat(*WHOLE[:-1], "cuOld(long x)"))


def test_the_real_spec_loads() -> None:
    real = spec_load.load(ROOT / "proto" / "spec")
    assert len(real.cuda) > 500
    assert {f.id for f in real.functions if f.is_message} & {f.id for f in real.cuda} == set()
