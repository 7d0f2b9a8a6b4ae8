"""Write the generated half of gpupool.

    python -m gpgen --spec proto/spec --header flat.h --out build/proto/gen

--header is cuda.h after the C preprocessor; without it nothing is compared.
--coverage FILE rewrites the table of the docs, --reference FOLDER writes the reference of the
functions. --wire-doc FILE writes the tables of all messages, with the sizes that the program
made from gp_sizes.c has printed to --sizes FILE.
--lock writes what is new into the ledger of operations, ids.lock, --release VERSION also
that this release has it. Errors are `file:line: text`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import (
    emit_calls,
    emit_client,
    emit_docs,
    emit_driver,
    emit_fuzz,
    emit_ids,
    emit_python,
    emit_reference,
    emit_stubs,
    emit_tables,
    emit_trace,
    emit_wire,
    emit_wire_doc,
    emit_worker,
    ids,
)
from . import header as header_check
from .param import SpecError
from .spec import Spec
from .spec_load import load

OUTPUTS = {
    "gp_ops.h": emit_wire.ops,
    "gp_ops.c": emit_wire.ops_source,
    "gp_ids.h": emit_ids.header,
    "gp_ids.c": emit_ids.source,
    "gp_messages.h": emit_wire.messages,
    "gp_decode.h": emit_wire.decode_header,
    "gp_decode.c": emit_wire.decode_source,
    "gp_sizes.c": emit_wire_doc.sizes_source,
    "gp_errors.h": emit_tables.errors_header,
    "gpc_wire.h": emit_client.wire_header,
    "gpc_wire.c": emit_client.wire_source,
    "gpc_stubs.h": emit_stubs.stubs_header,
    "gpc_stubs.c": emit_stubs.stubs,
    "gpc_notify.c": emit_client.notify,
    "gpc_exports.h": emit_client.exports,
    "gpc_bodies.h": emit_trace.bodies,
    "gpc_trace_calls.c": emit_trace.trace_calls,
    "gpc_proc_table.c": emit_tables.proc_table,
    "libcuda.map": emit_tables.linker_map,
    "gpw_driver.h": emit_driver.driver_header,
    "gpw_driver.c": emit_driver.driver_source,
    "gpw_handlers.h": emit_worker.handlers,
    "gpw_dispatch.c": emit_worker.dispatch,
    "_wire.py": emit_python.constants,
    "fuzz_decode.dict": emit_fuzz.dictionary,
    "fuzz_requests.c": emit_fuzz.requests,
    "fuzz_answers.c": emit_fuzz.answers,
    "fuzz_calls.c": emit_calls.calls,
}


def generate(spec: Spec, out: Path) -> None:
    """Write every output; files that would not change keep their time."""
    for name, emit in OUTPUTS.items():
        emit_docs.write_if_changed(out / name, emit(spec))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpgen", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--coverage", type=Path)
    parser.add_argument("--wire-doc", type=Path)
    parser.add_argument("--sizes", type=Path, help="what --wire-doc reads")
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--release", metavar="VERSION", default="")
    parser.add_argument("--reference", type=Path, help="folder for the reference's pages")
    parser.add_argument("--seeds", type=Path, help="folder for the fuzzer's seed messages")
    args = parser.parse_args(argv)
    try:
        spec = load(args.spec)
        if args.header:
            header_check.check(spec, args.header.read_text(encoding="utf-8"))
        ids.check(spec, args.spec / ids.LEDGER)
        emit_reference.check(spec)
        if args.lock or args.release:
            ids.lock(spec, args.spec / ids.LEDGER, args.release or ids.NONE)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 1
    if args.out:
        generate(spec, args.out)
    if args.coverage:
        emit_docs.write_if_changed(args.coverage, emit_docs.coverage(spec))
    if args.wire_doc:
        sizes = emit_wire_doc.read_sizes(args.sizes.read_text(encoding="utf-8"))
        emit_docs.write_if_changed(args.wire_doc, emit_wire_doc.wire_doc(spec, sizes))
    if args.reference:
        for name, text in emit_reference.reference(spec).items():
            emit_docs.write_if_changed(args.reference / name, text)
    if args.seeds:
        args.seeds.mkdir(parents=True, exist_ok=True)
        for f in spec.wire:
            (args.seeds / f.name).write_bytes(emit_fuzz.seed(f))
    return 0


if __name__ == "__main__":
    sys.exit(main())
