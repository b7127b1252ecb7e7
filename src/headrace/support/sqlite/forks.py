"""Forks: how SQLite connections are kept from crossing them.

SQLite has one table for each process with the files that it has open and its POSIX locks on them. A fork copies the
table but not the locks. A connection that the child opens joins the inherited entry and takes no lock that another
process can see. When another process then closes its last connection, SQLite finds no other lock and deletes the
write-ahead log; the child continues to write to the deleted file, and its commits are lost.

A child must therefore close all inherited connections before it opens its own. Closing is safe under two conditions:
no inherited connection is in a write transaction, because its rollback would change memory that the parent shares; and
no other thread was inside SQLite, because its mutexes would stay locked in the child. `no_fork` marks code during which
these conditions do not hold, and a fork waits for such code to end in other threads. If it does not end in time, or if
the forking thread runs such code itself, the child does not close the inherited connections, and `no_fork` raises an
error in the child.
"""

from __future__ import annotations

# `concurrent.futures` locks its own mutex before a fork. Hooks run in reverse order of registration: ours must come
# later, or a thread that submits work inside `no_fork` would wait for a fork that waits for it.
import concurrent.futures.thread  # noqa: F401
import os
import threading
import weakref
from typing import Protocol

from headrace.errors import StoreError
from headrace.support.sqlite import interrupts

# The limit of a fork's wait for transactions of other threads.
PATIENCE_SECONDS = 60.0


class Inheritance(Protocol):
    """Inherited state that a forked process must drop."""

    def has_connections(self) -> bool:
        """Return whether connections are open."""

    def drop(self, *, close: bool) -> None:
        """Drop the state; without ``close``, keep open connections in memory and never use them."""


class _NoFork:
    """A lock for either code of many threads, or one fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}
        # The thread that forks. It may enter during the fork: the garbage collector closes handles in any thread.
        self._forking: int | None = None
        # The number of nested forks: a signal handler may fork while a fork of its thread waits.
        self._forks = 0
        self._is_quiet = False
        self._process = os.getpid()
        self._is_usable = True
        # Whether the main thread holds signals back until it leaves.
        self._holds = False

    @interrupts.atomic
    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._is_usable and me in self._depths and self._process == os.getpid():
            self._depths[me] += 1
            return
        holds = interrupts.hold()
        try:
            self._enter(me)
            if holds:
                self._holds = True
                interrupts.deliver()
        except BaseException:
            if me in self._depths:
                self.__exit__()
            elif holds:
                interrupts.release()
            raise

    def _enter(self, me: int) -> None:
        """Wait for a fork to end, and let no fork begin."""
        if self._process != os.getpid():
            # A fork by code that does not run Python's hooks.
            self.after_in_child()
        if not self._is_usable:
            raise StoreError(
                "this process was forked during a transaction of a store or workspace, and cannot use any",
                received=f"process {self._process}",
                remedy="fork before stores are opened, or start processes with multiprocessing's 'spawn' method",
            )
        with self._changed:
            while self._forking not in (None, me):
                self._changed.wait()
            self._depths[me] = 1

    @interrupts.atomic
    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        # A child does not have the depths of its parent.
        depth = self._depths.get(me, 0)
        if depth > 1:
            self._depths[me] = depth - 1
        elif depth:
            with self._changed:
                del self._depths[me]
                if self._forking is not None:
                    self._changed.notify_all()
        if depth <= 1 and self._holds and me == threading.main_thread().ident:
            self._holds = False
            interrupts.release()

    def before_fork(self) -> None:
        """Wait until other threads have left, and let no thread enter."""
        me = threading.get_ident()
        self._changed.acquire()
        while self._forking not in (None, me):
            self._changed.wait()
        self._forking = me
        self._forks += 1
        if me not in self._depths:
            self._changed.wait_for(lambda: not self._depths, PATIENCE_SECONDS)
        self._is_quiet = self._is_usable and self._process == os.getpid() and not self._depths

    def after_in_parent(self) -> None:
        """Let threads enter again."""
        if self._forking is None:
            # This process is the child of a fork in a signal handler that interrupted this fork.
            return
        self._forks -= 1
        if not self._forks:
            self._forking, self._is_quiet = None, False
            self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Drop inherited state; the process can use SQLite if that is safe, or if no connection was inherited."""
        if self._process == os.getpid():
            # A finalizer in the child has already run this.
            return
        inherited = list(_inheritances)
        is_idle = not self._depths and not any(each.has_connections() for each in inherited)
        self._is_usable = self._is_quiet or (self._is_usable and is_idle)
        self._changed = threading.Condition()
        self._depths = {}
        self._forking, self._forks, self._is_quiet = None, 0, False
        self._process = os.getpid()
        for each in inherited:
            each.drop(close=self._is_usable)


no_fork = _NoFork()
_inheritances: weakref.WeakSet[Inheritance] = weakref.WeakSet()


def register(inheritance: Inheritance) -> None:
    """Register state that forked processes drop; the reference is weak."""
    _inheritances.add(inheritance)


os.register_at_fork(
    before=no_fork.before_fork, after_in_parent=no_fork.after_in_parent, after_in_child=no_fork.after_in_child
)
