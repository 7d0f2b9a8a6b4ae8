"""The API description: what proto/spec/*.toml says, checked and in memory.

`doc` says in one sentence what a function or message does here, `differs` in one what is not as
with a local driver. Both are the reference's (emit_reference.py); what is implemented has a
`doc`, what is refused its `reason`.

One TOML table per entry point, in a file for each group of functions. Messages of our own,
beside the calls of CUDA, are in the same form: names start with gp_, numbers from 1024, and
their groups are the files of the folder messages. A parameter is one string, a C declaration and,
behind a colon, what the declaration cannot say:

    "const unsigned long long *globalDim : in[tensorRank]"

========== =====================================================================
word       how the parameter travels
========== =====================================================================
out        pointer to one value that the call fills
inout      pointer to one value, read and filled
in         pointer to one value that the call reads
in[N]      N elements to read (bytes if the element is void); N is a C expression
           over the other parameters
out[N]     room for N elements; the callee may give fewer
optional   the pointer may be null
string     NUL-terminated text to read
address    a pointer that is a number on the device, sent by value
create     handle that the client names before it sends the call
destroy    handle that is gone after the call
null       the handle may be null
span[N]    N bytes from this device address on must be memory of the session's: the
           worker checks that before the driver sees it; N may use proto/wire/span.h
device[N]  likewise, and memory of a device alone: no mapped host memory
own[N]     likewise, and addresses that the client has reserved itself
aim[N]     as span, or from GP_NOWHERE on, where no memory will ever be
captured[N] N bytes of a buffer for graphs, which the client names so; the worker's address
arena[N]   N bytes from this offset of the arena on; likewise
texture    the number of a live texture object of the current context, which the worker checks
surface    of a live surface object; likewise
anew       the event is recorded anew: who waits for it waits for what it holds now
========== =====================================================================

Words for what a value must be; CUDA says CUDA_ERROR_INVALID_VALUE at once otherwise, and
so does the client's stub. They are no part of what travels. E is a C expression
over the other parameters and CUDA's constants. client_words.py has the words and keys for
what a stub answers, checks and calls besides.

========== =====================================================================
word       what holds
========== =====================================================================
flags[E]   no bit is set that E lacks
below[E]   the value is 0 or more and less than E
upto[E]    the value is 0 or more and at most E
nonzero    the value is not 0
zero       the value is 0 (a reserved parameter)
among[A|B] the value is one of these: no other may reach the driver, so the worker checks
========== =====================================================================

Keys of an entry, beside id, api, since, ptsz, ptds, also, header, needs and params:

=========== ====================================================================
key         meaning
=========== ====================================================================
mode        what the stub does, one of MODES
sends       the messages that a hand-written stub may send beside its own: needed by mode
            custom and bulk, allowed with client = "custom", never with local. What gets
            any call across (a session's opening, a context set) is not named. "@X" stands
            for the set X of sets.toml. A test compares it with what the C code reaches.
alias       mode alias: the entry that does it: its name or a call of it, "cuX(hStream, 0)"
client      "custom": the exported function is hand-written though gpgen could write it
file        the C file with the hand-written body where that is not the one of the
            entry's group: a stem for all sides, or { client = …, worker = … }
reason      why it is refused
core        without it no program runs: a session with a side of another release that lacks
            it, or has it in another form, is refused
later       mode notify: it may travel with what the worker says next, or 100 us later
=========== ====================================================================

Facts of an operation, which go into one table (gp_ops.h), so that no C file lists operations:

=========== ====================================================================
key         meaning
=========== ====================================================================
work        what it puts on the GPU, one of WORK: it passes the gate
blocks      false: it is waited for, but the driver answers whatever the GPU does;
            every other call that is waited for may block in the driver
slow        the driver loads or compiles in it, which keeps the worker for long
grows       the driver may take, or give back, memory that nobody asked for
quiet       it puts nothing on the GPU: what was idle before it is idle behind it
tidies      the worker may use, or give back, memory of the device that is free, or say how much
            that is; what says what it takes does
stalls      what is on the GPU may wait, from then on, for what the program does next
staged      the worker needs a piece of its staging memory for it
capture     what it does to its stream's capture: "begins", "joins" or "ends" it, "asks"
            about it, or "refuses": it is not supported while there is one. An async call
            that names a stream joins it without being told to.
first_waits an async call that the driver may refuse: waited for the first time with
            these arguments
forgets     the cached entries whose answers it makes out of date
=========== ====================================================================

Structures of our own that messages carry are in structs.toml (structs.py). What more an
entry says of its stub is in client_words.py, of its handler in worker_words.py.
What handles a call makes, uses and ends is read from the parameters.
A file may hold a list of forms instead of entries: `since` and `reason`, which hold for all, and
`forms`, one C prototype each behind its id; they are refused. With `doc` and `answers` in the
place of `reason` they give that error, and set the numbers that they would fill to 0; with
`not_live`, too, a handle that is not live gives that one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import worker_words
from .error_codes import ErrorCode
from .param import OF_CONTEXT, PARENTS, Param, SpecError
from .structs import Struct

MODES = {
    "local": "answered by the client",
    "cached": "asked once per key, then answered by the client",
    "async": "sent, not waited for",
    "async-create": "sent, not waited for; the client names the new handle",
    "sync": "sent and waited for",
    "bulk": "carries user memory, with the messages that it names",
    "custom": "hand-written; sends the messages that it names",
    "alias": "another name of the entry that it names",
    "notify": "worker to client",
    "refuse": "answers CUDA_ERROR_NOT_SUPPORTED",
}
WIRE_MODES = {"cached", "async", "async-create", "sync", "notify"}
SENDING_MODES = {"bulk", "custom"}
NEEDS = {"none", "init", "context"}
SIDES = ("client", "worker", "softgpu")
CAPTURES = ("begins", "joins", "ends", "asks", "refuses")

#: Structures with a device's number in them, and where.
LOCATIONS = {
    "CUmemLocation": "",
    "CUmemAllocationProp": ".location",
    "CUmemPoolProps": ".location",
    "CUmemAccessDesc": ".location",
}

#: Kinds of work for the GPU, as tenants are charged and counted for it.
#: Uploads and downloads are copies from and to the host, which have engines of their own.
#: A move is a copy that its two ends, `dst` and `src`, may make an upload or a download.
WORK = ("kernel", "graph", "copy", "memset", "upload", "download", "move")

KEYS = {
    "id",
    "api",
    "since",
    "ptsz",
    "ptds",
    "also",
    "mode",
    "needs",
    "client",
    "worker",
    "sends",
    "alias",
    "file",
    "doc",
    "differs",
    "forgets",
    "reason",
    "header",
    "params",
    "work",
    "grows",
    "first_waits",
    "quiet",
    "tidies",
    "stalls",
    "staged",
    "blocks",
    "slow",
    "capture",
    "core",
    "later",
    "its",
    "fails",
    "refuses",
    "does",
    "then",
    "tells",
    "calls",
    "waits_for",
    "idle",
    "takes",
    "freed",
}


@dataclass
class Function:
    """One entry point of CUDA, or one message of our own."""

    name: str
    file: Path
    line: int
    id: int
    mode: str
    api: str
    since: int = 0
    ptsz: int = 0
    ptds: int = 0
    also: dict[str, int] = field(default_factory=dict)
    needs: str = "context"
    client: str = ""  # "custom": the exported function is hand-written
    worker: str = ""  # one of WORKERS (worker_words.py)
    calls: str = ""  # the driver's call if it has another name
    waits_for: str = ""  # the stream after whose work it is answered, or "context"
    idle: bool = False  # made when no stream is blocked
    takes: str = ""  # bytes of the device's memory that the driver takes at least
    freed: str = ""  # when it says what frees before it give back
    tells: bool = False  # success says that work is over
    work: str = ""  # what it puts on the GPU, one of WORK: it goes through the gate
    grows: bool = False  # the driver may take, or give back, memory that nobody asked for
    #: An async call that may be refused: waited for the first time with these arguments.
    first_waits: bool = False
    quiet: bool = False  # puts nothing on the GPU
    tidies: bool = False  # the worker may use, or give back, memory that is free
    stalls: bool = False  # the GPU may wait for what the program does next
    staged: bool = False  # the worker needs a piece of its staging memory for it
    blocks: bool = True  # the driver may wait for the GPU in it, if it is waited for at all
    slow: bool = False  # keeps the worker in the driver for long, loading or compiling
    later: bool = False  # a notice that may wait for what is sent next
    core: bool = False  # without it there is no session: a side that lacks it is refused
    capture: str = ""  # what it does to its stream's capture, one of CAPTURES
    sends: list[str] = field(default_factory=list)  # messages of a hand-written stub
    alias: str = ""  # the entry that does it, or a call of it
    its: str = ""  # of what object the stub answers: "kind(argument)"
    fails: dict[str, str] = field(default_factory=dict)  # error -> condition
    refuses: dict[str, str] = field(default_factory=dict)  # what -> condition
    does: str = ""  # the C call in the place of a message
    then: str = ""  # the C call behind a message
    home: dict[str, str] = field(default_factory=dict)  # side -> stem of the C file
    forgets: list[str] = field(default_factory=list)  # cached entries that it outdates
    reason: str = ""
    answers: str = ""  # of a form in a list: the one error that it gives
    not_live: str = ""  # likewise: the error of an object that is none, which comes first
    doc: str = ""  # what it does here, in one sentence
    differs: str = ""  # what is not as with a local driver
    header: str = "cuda.h"
    params: list[Param] = field(default_factory=list)
    structs: list[Struct] = field(default_factory=list)  # of our own, that travel in it
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def is_message(self) -> bool:
        return self.name.startswith("gp_")

    @property
    def has_wire(self) -> bool:
        return self.mode in WIRE_MODES

    @property
    def waits(self) -> bool:
        return self.mode in ("sync", "cached")

    @property
    def is_deferred(self) -> bool:
        """Whether the worker answers when something is over."""
        return self.worker == "deferred" or bool(self.waits_for)

    @property
    def checks_addresses(self) -> bool:
        """Whether what the worker does by hand checks the addresses it is given."""
        return self.worker in ("custom", "deferred") or bool(worker_words.own_call(self))

    @property
    def stream(self) -> str:
        """The parameter that names its stream, "" if none does."""
        return next((p.name for p in self.params if p.handle == "stream"), "")

    @property
    def may_block(self) -> bool:
        """Whether the driver may wait for the GPU in it."""
        return self.waits and self.blocks

    @property
    def in_capture(self) -> str:
        """What it does to its stream's capture, one of CAPTURES; "" if captures may forbid it."""
        joins = self.mode == "async" and any(
            p.handle == "stream" and not p.has("destroy") for p in self.params
        )
        return self.capture or ("joins" if joins else "")

    @property
    def variants(self) -> list[str]:
        """The per-thread-stream names exported beside this one."""
        return [f"{self.name}_{s}" for s in ("ptds", "ptsz") if getattr(self, s)]

    def parent(self, child: Param) -> Param | None:
        """The handle that a created one goes with."""
        kinds = PARENTS.get(child.handle or "", ())
        return next((p for p in self.params if p.handle in kinds and p is not child), None)

    def of_context(self, child: Param) -> bool:
        """Whether a created handle goes with the current context."""
        parent = self.parent(child)
        # a kernel has a function in each context
        made = child.pointee == "CUfunction" and parent is not None and parent.ctype == "CUkernel"
        return child.handle in OF_CONTEXT or made

    @property
    def creates(self) -> list[Param]:
        return [p for p in self.params if p.has("create")]

    @property
    def target(self) -> str:
        """Of an alias: the name of the entry that does it."""
        return self.alias.partition("(")[0]

    @property
    def by_hand(self) -> bool:
        """Whether somebody writes the client's function."""
        hand = self.mode in SENDING_MODES or self.client == "custom"
        return not self.is_message and hand and not self.does

    @property
    def place(self) -> Param | None:
        """The handle that names the context, and with it the device, of the call: an explicit
        stream, else an event. The current context counts only where there is none."""
        if self.needs != "context" or any(p.handle == "context" for p in self.params):
            return None
        named = [p for p in self.params if not p.has("create")]
        for kind in ("stream", "event"):
            if found := next((p for p in named if p.handle == kind), None):
                return found
        return None

    @property
    def prototype(self) -> str:
        return ", ".join(p.decl for p in self.params) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(p.name for p in self.params)

    def fail(self, key: str, text: str) -> SpecError:
        return SpecError(f"{self.file}:{self.lines.get(key, self.line)}: {self.name}: {text}")


@dataclass
class Spec:
    """All of proto/spec."""

    functions: list[Function]
    errors: list[ErrorCode]
    structs: list[Struct] = field(default_factory=list)

    @property
    def cuda(self) -> list[Function]:
        return [f for f in self.functions if not f.is_message]

    @property
    def wire(self) -> list[Function]:
        return [f for f in self.functions if f.has_wire]

    def named(self, name: str) -> Function:
        return next(f for f in self.functions if f.name == name)

    def sent(self, f: Function) -> list[Function]:
        """Every message that a call of `f` may send."""
        if f.alias:
            return self.sent(self.named(f.target))
        return [*([f] if f.has_wire else []), *(self.named(name) for name in f.sends)]

    def waits(self, f: Function) -> str:
        """Whether a call of `f` waits for an answer."""
        if f.alias:
            return self.waits(self.named(f.target))
        if f.mode == "cached" and not f.sends:
            return "once"
        waiting = [m.waits for m in self.sent(f)]
        return "no" if not any(waiting) else "yes" if waiting == [True] else "may"
