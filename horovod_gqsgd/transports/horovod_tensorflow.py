"""Horovod's operations as they are in TensorFlow graphs, under names that all ranks share."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from horovod.common.process_sets import _temp_process_set_object
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import Average, Max, Sum

from horovod_gqsgd.agreement import translate


def elastic() -> bool:
    """Whether the number of ranks may change while graphs stay; told as Horovod itself does."""
    return os.environ.get("HOROVOD_ELASTIC", "0") != "0"


def world(process_set: int) -> tuple[int, int]:
    """Rank in a process set, and its size; read at every step, as elastic jobs change it."""
    basics = mpi_ops._basics  # those of `process_sets` may be another framework's
    return basics._process_set_rank(process_set), basics._process_set_size(process_set)


def ranks(process_set: int) -> list[int] | None:
    """The members of a process set; None for that of all ranks, where they are in order."""
    if process_set == 0:
        return None
    return mpi_ops._basics._get_process_set_ids_and_ranks()[process_set]


class Call(NamedTuple):
    """What Horovod's Python layer asked for, besides the tensors."""

    name: str | None  # none for an eager call that has none
    op: int
    prescale: float
    postscale: float
    ignore_name_scope: bool
    process_set: int
    members: int | None = None  # of a group

    def compresses(self) -> bool:
        """Whether the operation is one that can, and this rank has others to talk to."""
        try:
            _rank, n = world(self.process_set)
        except ValueError as error:
            if "not part of" not in str(error):
                raise
            return False  # Horovod traces the operation here all the same
        return self.op in (Average, Sum) and (n > 1 or elastic())

    def factor(self, n: int) -> float:
        """What the mean is multiplied by at decode."""
        scale = self.prescale * self.postscale
        return scale if self.op == Average else scale * n

    def world_size(self) -> Any:
        """How many ranks there are, as far as that is known: elastic jobs keep their graphs."""
        if elastic() and not tf.executing_eagerly():
            return tf.cast(mpi_ops.size_op(self.process_set), tf.int64)
        return world(self.process_set)[1]

    @property
    def key(self) -> str:
        """The name that keys the dither; Horovod's own if there is no other."""
        return self.name or "HorovodAllreduce"

    def node(self) -> str:
        """The name that counts steps: that of the first collective's node, to be added next.

        It has the scope in it, and in one scope TensorFlow tells nodes apart by a number: calls of
        one graph that share a name run in any order, and would count one another's steps.
        """
        if tf.executing_eagerly():
            return self.key
        return tf.compat.v1.get_default_graph().unique_name(self.key, mark_as_used=False)

    def announce(self, head: Any) -> Any:
        """Max under the call's own name, as a rank that does not compress would do.

        In a group, member for member: Horovod tells ranks that differ, where they would wait for
        one another otherwise. It tells what became of the member that it completed last, so all
        differ if one does: each has the length of the head in its shape, and no elements.
        """
        if self.members is None:
            return self._run(mpi_ops._allreduce, head, name=self.name, op=Max)
        other = tf.zeros([tf.size(head), 0], head.dtype)
        group = [head, *[other] * (self.members - 1)]
        return self._run(mpi_ops._grouped_allreduce, group, name=self.name, op=Max)[0]

    def sum(self, place: int, payload: Any) -> Any:
        """A collective, as those below, in the given ``place`` after the first.

        Ranks that differ in what they do next meet under one name, and Horovod tells them all.
        """
        return self._later(mpi_ops._allreduce, place, payload, op=Sum)

    def gather(self, place: int, rows: Any) -> Any:
        """The rows of all ranks, one after the other."""
        return self._later(mpi_ops.allgather, place, rows)

    def scatter(self, place: int, rows: Any, splits: Any) -> Any:
        """So many rows to every rank."""
        return self._later(mpi_ops.alltoall, place, rows, splits)[0]

    def size(self) -> Any:
        """How many ranks there are, as a node that TensorFlow does not know the value of."""
        return mpi_ops.size_op(self.process_set)

    def _later(self, operation: Any, place: int, *arguments: Any, **options: Any) -> Any:
        return self._run(operation, *arguments, name=f"{self.key}.gq.{place}", **options)

    def uncompressed(self, tensors: Sequence[Any]) -> list[Any]:
        """Horovod's own operation; bfloat16, which it refuses, as float32."""
        wide = [tf.cast(t, tf.float32) if t.dtype == tf.bfloat16 else t for t in tensors]
        options = {"op": self.op, "prescale_factor": self.prescale}
        options["postscale_factor"] = self.postscale
        if self.members == len(wide):
            results = self._run(mpi_ops._grouped_allreduce, wide, name=self.name, **options)
        else:
            names = [f"{self.key}.gq.plain.{i}" for i in range(len(wide))]
            results = [
                self._run(mpi_ops._allreduce, tensor, name=name, **options)
                for tensor, name in zip(wide, names if self.members else [self.name], strict=True)
            ]
        return [tf.cast(result, t.dtype) for result, t in zip(results, tensors, strict=True)]

    def _run(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        members = _temp_process_set_object(self.process_set)
        scope = {"ignore_name_scope": self.ignore_name_scope, "process_set": members}
        try:
            return operation(*arguments, **options, **scope)
        except tf.errors.OpError as error:  # eager execution alone raises here
            told = translate(self.key, error)
            if told is error:
                raise
            raise told from error
