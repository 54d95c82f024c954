# SPDX-License-Identifier: Apache-2.0
"""The communicator of dist.init, and this process's place in it."""

from __future__ import annotations

from choir import _comm
from choir._comm import Communicator, NcclIdHolder
from choir._calls import StateError
from choir._sections import deferred

_comm_of_init: Communicator | None = None
_rendezvous_id: str | None = None


def init(
    rendezvous_id: NcclIdHolder | str | None = None,
    rank: int | None = None,
    size: int | None = None,
    deadline: float | None = None,
    *,
    ticket: NcclIdHolder | str | None = None,
    silence: float | None = None,
) -> None:
    """Joins the other workers; collective.

    Without a rendezvous id: as the launcher says (python -m choir -np, choirrun,
    mpiexec), or alone. With one (`NcclIdHolder()`, made by one process and
    handed to the others, or its text `.id`): as `rank` of `size` on this host.
    `ticket` is its old name, which is still read.
    deadline: longest wait in seconds for a peer in one operation and here;
    CHOIR_DEADLINE or 60. silence: longest wait for a sign of life of a peer; as
    the deadline where it is not given. opt.DistOpt works on this communicator too.

    A second call does nothing; StateError if it asks for another place or
    limits than the first. CommError names the ranks that did not come.
    """
    global _comm_of_init, _rendezvous_id
    given = ticket if rendezvous_id is None else rendezvous_id
    text = given.id if isinstance(given, NcclIdHolder) else given
    if text is None:
        if rank is not None or size is not None:
            raise ValueError(
                "init: rank and size go with a rendezvous id, which "
                "singa_wrap.NcclIdHolder() makes; none was given"
            )
    elif not isinstance(text, str):
        raise TypeError(
            f"init: the rendezvous id is a {type(given).__name__}; a NcclIdHolder "
            "or its text is needed"
        )
    elif rank is None or size is None:
        raise ValueError("init: a rendezvous id needs rank and size beside it")
    if is_initialized():
        comm = _comm_of_init
        if text is not None and (text, rank, size) != (
            _rendezvous_id,
            comm.global_rank,
            comm.world_size,
        ):
            raise StateError(
                f"init: this process is rank {comm.global_rank} of "
                f"{comm.world_size} already; call shutdown first"
            )
        _check_limits(comm, deadline, silence)
        return
    with deferred():
        if text is not None:
            comm = Communicator(
                rank,
                size,
                NcclIdHolder(text),
                deadline=deadline,
                silence=silence,
            )
        elif _comm.has_default():
            comm = _comm.default()  # DistOpt was first
            _check_limits(comm, deadline, silence)
        else:
            comm = Communicator(deadline=deadline, silence=silence)
        _comm.set_default(comm)
        _comm_of_init, _rendezvous_id = comm, text


def _check_limits(
    comm: Communicator, deadline: float | None, silence: float | None
) -> None:
    for name, given in (("deadline", deadline), ("silence", silence)):
        there = getattr(comm, name)
        if given is not None and given != there:
            raise StateError(
                f"init: the communicator waits {there:g} seconds, not "
                f"{given:g}; give the {name} to the first call, before DistOpt"
            )


def shutdown() -> None:
    """Waits until all ranks are here, and leaves; collective.

    Nothing where init was not called. An id serves once: to go on after it,
    init with a new one."""
    global _comm_of_init, _rendezvous_id
    if not is_initialized():
        return
    with deferred():
        comm, _comm_of_init, _rendezvous_id = _comm_of_init, None, None
        _comm.set_default(None)
        comm.close()


def is_initialized() -> bool:
    """Whether init was called, and shutdown not since."""
    return _comm_of_init is not None and _comm_of_init.handle is not None


def communicator() -> Communicator:
    """What init joined; StateError before it."""
    if not is_initialized():
        raise StateError("dist: call choir.dist.init() first")
    return _comm_of_init


def rank() -> int:
    """This process's number, 0 to size() - 1."""
    return communicator().global_rank


def size() -> int:
    """How many processes there are."""
    return communicator().world_size


def local_rank() -> int:
    """The number among the processes of this host: which device to take."""
    return communicator().local_rank


def local_size() -> int:
    """How many processes this host has."""
    return communicator().local_size


def cross_rank() -> int:
    """This host's number, counted by lowest rank."""
    return communicator().host_index()


def cross_size() -> int:
    """How many hosts there are."""
    return communicator().host_count()


def backend() -> str:
    """How the ranks exchange: self, shm, mpi or nccl."""
    return communicator().backend
