"""``races`` in a process that uses CUDA: what it does not see, it says."""

from __future__ import annotations

import numpy as np
import pytest

import streamkit as sk
from streamkit._cuda import callbacks  # the emulated driver calls nobody back


@pytest.fixture(autouse=True)
def no_callbacks(monkeypatch):
    def find():
        raise callbacks.NoCallbacksError("there is no libcupti")

    monkeypatch.setattr(callbacks, "_find", find)


UNSEEN = "all work on CUDA streams, which is not counted: there is no libcupti"


def test_work_on_cuda_streams_is_told_to_be_missing():
    stream, array = sk.new_stream("cpu"), np.zeros(3)
    with sk.races() as report:
        stream.submit(np.copyto, array, 1)
        sk.new_stream("cuda").sync()
    assert report.coverage.missed == (UNSEEN,)
    assert (report.coverage.understood, report.coverage.total) == (1, 1)
    assert str(report.coverage).endswith(f"understood; not: {UNSEEN}.")


def test_waits_for_cuda_streams_order_no_host_stream():
    streams, array = [sk.new_stream("cpu"), sk.new_stream("cpu")], np.zeros(3)
    with sk.races() as report:
        streams[0].submit(np.copyto, array, 1)
        cuda = sk.new_stream("cuda")
        cuda.sync()
        cuda.record().sync()
        cuda.then(int).result()
        streams[1].submit(np.copyto, array, 2)
    assert [race.certain for race in report.races] == [True]
