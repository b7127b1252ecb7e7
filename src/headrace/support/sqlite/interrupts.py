"""Signals: an exception of a signal handler, such as Ctrl-C, must leave no lock and no transaction behind.

Python runs signal handlers in the main thread between any two instructions: also after a file is locked and before the
``try`` that unlocks it, or before the first line of ``__exit__``. No ``try`` covers all such places. So `hold` replaces
the handlers while a transaction is open. A signal inside a function that is `atomic` waits for the end of `__enter__`
or of the transaction; everywhere else its own handler runs immediately, so that a long write can be interrupted.
"""

from __future__ import annotations

# The functions of module `signal` take 3 µs, because they convert the handlers to enums.
import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Signals whose handlers raise exceptions: Ctrl-C, `sys.exit` in services, time-outs. Ctrl-C is the first that is held.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP)
_atomic: set[CodeType] = set()
_interruptible: set[CodeType] = set()
_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
_waiting: dict[int, Callable[[int, FrameType | None], Any]] = {}
# The thread between `hold` and `release`; 0 if there is none.
_holder = 0


def atomic(function: _Function) -> _Function:
    """Mark a function that no signal handler interrupts between `hold` and `release`, nor the functions it calls."""
    _atomic.add(function.__code__)
    return function


def interruptible(function: _Function) -> _Function:
    """Mark a function that waits inside an `atomic` one, which cleans up after an exception at any point of it."""
    _interruptible.add(function.__code__)
    return function


@atomic
def hold() -> bool:
    """Hold signals back from `atomic` functions, and return whether `release` must be called.

    It need not where signals are held already, and in threads that run no signal handlers.
    """
    global _holder
    # Not `current_thread`: in a thread that Python has ended, it would register another one.
    if _holder or threading.get_ident() != threading.main_thread().ident:
        return False
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        # It is `_receive` if an exception has ended an earlier call in its middle.
        if callable(handler) and handler is not _receive:
            _handlers[number] = handler
            _signal.signal(number, _receive)
    _holder = threading.get_ident()
    return True


@atomic
def release() -> None:
    """Give the signals their handlers back, and run the handlers of those that have arrived."""
    global _holder
    _holder = 0
    try:
        _restore()
    except BaseException:
        # By a signal that has its handler back already.
        _restore()
        raise
    deliver()


def _restore() -> None:
    for number in reversed(_SIGNALS):
        handler = _handlers.get(number)
        if handler is not None:
            # A handler that has run meanwhile may have set another one.
            if _signal.getsignal(number) is _receive:
                _signal.signal(number, handler)
            _handlers.pop(number, None)


def deliver() -> None:
    """Run the handlers of the signals that have arrived. One that raises an exception leaves the others for later."""
    while _waiting:
        number, handler = _waiting.popitem()
        handler(number, None)


def _receive(number: int, frame: FrameType | None) -> None:
    """Handle a signal: later if an atomic function runs, or else now."""
    handler = _handlers.get(number)
    if handler is None:
        return
    at = frame
    while at is not None and at.f_code not in _interruptible:
        if at.f_code in _atomic:
            _waiting[number] = handler
            return
        at = at.f_back
    handler(number, frame)


def _after_in_child() -> None:
    """Release the signals in a process that another thread than the holder has forked."""
    if _holder not in (0, threading.get_ident()):
        _waiting.clear()
        release()


os.register_at_fork(after_in_child=_after_in_child)
