"""Keeps one picture of everything, refreshed in the background; pages read it and never wait for a disk or a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.observing import Observer
from ckptcore.rules.addresses import public_address
from ckptcore.rules.observed import Snapshot, Watched
from ckptcore.rules.observed_runs import RunSeen, ServerSeen

EVERY_SECONDS = 2.0
_SHARE = 4.0
"""Between two looks at the disks it rests so many times as long as the last one took."""


_LEAST_SECONDS = 0.2
"""Between two looks while there is something that was never looked into, and each look comes further."""


class Refresher:
    """One thread looks at sources and registries, one at each server. ``number`` grows with whatever changes."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self.watched = tuple(watched)
        self._observer = Observer(self.watched)
        self._apis = {url: PrefectApi(url) for url in dict.fromkeys(each.server for each in watched) if url}
        self._servers: dict[str, ServerSeen] = {url: ServerSeen(url) for url in self._apis}
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._threads: list[threading.Thread] = []
        self._mutex = threading.Lock()
        self.number = 0
        self.trouble = ""
        """Why the disks could not be looked at last time; the picture is older than it should be."""

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._look_at_disks, name="observer", daemon=True)]
        self._threads += [
            threading.Thread(target=self._look_at_server, args=(url,), name="server", daemon=True) for url in self._apis
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._hurry.set()
        for thread in self._threads:
            thread.join(5.0)
        for api in self._apis.values():
            api.close()

    @property
    def snapshot(self) -> Snapshot:
        return self._observer.snapshot

    @property
    def servers(self) -> Mapping[str, ServerSeen]:
        return self._servers

    def server(self, watched: Watched) -> ServerSeen | None:
        """The server of what is watched, None where none is configured."""
        return self._servers.get(watched.server)

    def api(self, watched: Watched) -> PrefectApi | None:
        return self._apis.get(watched.server)

    def runs(self, watched: Watched) -> tuple[RunSeen, ...]:
        server = self.server(watched)
        return () if server is None else server.of(watched)

    def hurry(self) -> None:
        """Let the next look at the servers come at once."""
        self._hurry.set()

    def _changed(self) -> None:
        with self._mutex:
            self.number += 1

    def _look_at_disks(self) -> None:
        rest = _LEAST_SECONDS
        while not self._stop.is_set():
            begin, before = time.monotonic(), self._observer.snapshot
            try:
                found = self._observer.look()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever a disk does, the page says so and goes on
                found, trouble = before, f"the disks could not be looked at: {error!r}"
            if found.number != before.number or trouble != self.trouble or not before.at:
                self.trouble = trouble
                self._changed()
            took = time.monotonic() - begin
            if self._observer.has_seen_all:
                self._stop.wait(max(EVERY_SECONDS, _SHARE * took))
                continue
            # What cannot be measured, as a release without a manifest, leaves something to see for ever.
            goes_on = _left(found) != _left(before) or found.number != before.number
            rest = _LEAST_SECONDS if goes_on else min(2 * rest, max(EVERY_SECONDS, _SHARE * took))
            self._stop.wait(rest)

    def _look_at_server(self, url: str) -> None:
        while not self._stop.is_set():
            before = self._servers[url]
            try:
                found = self._apis[url].look()
            except Exception as error:  # noqa: BLE001 - whatever a server or a proxy before it sends, the page says so
                why = f"{public_address(url)} sends what is not understood: {error!r}"
                found = ServerSeen(url, why=why, asked_at=time.time())
            self._servers[url] = found
            if replace(found, asked_at=0.0) != replace(before, asked_at=0.0):
                self._changed()
            self._hurry.wait(EVERY_SECONDS)
            self._hurry.clear()


def _left(snapshot: Snapshot) -> int:
    """How many steps were never looked into."""
    return sum(seen.unread_steps for seen in snapshot.pipelines)
