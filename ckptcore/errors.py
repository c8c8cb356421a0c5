"""Every refusal of this package: one base class, one leaf a reason, each also the builtin that fits.

Catch :class:`CheckpointError` for all of them; ``.issues`` holds the single findings where a check
collected several. The command line prints the message and the issues and exits with status 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckptcore.rules.issues import Issue, in_order


class CheckpointError(Exception):
    """The checkpoint, release, request or disk is at fault; nothing was published."""

    def __init__(self, message: str, issues: Iterable[Issue] = ()) -> None:
        self.message = message
        self.issues = in_order(issues)
        super().__init__(message)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {issue}" for issue in self.issues)])


class DamagedFile(CheckpointError, ValueError):
    """The bytes of one file do not say what its format promises (cut, garbage, forbidden opcode or global)."""


class VersionNotFound(CheckpointError, FileNotFoundError):
    """The source holds no such step, id or component, or no complete version at all."""


class VersionIncomplete(CheckpointError, FileNotFoundError):
    """Rank files, metadata or signals of the version are missing."""


class VersionDamaged(CheckpointError, ValueError):
    """The version's files contradict each other or their format."""


class SelectionError(CheckpointError, LookupError):
    """The prefixes and patterns select nothing, or give two tensors one name."""


class MappingError(CheckpointError, ValueError):
    """A layout statement cannot be parsed, or does not fit the source's tensors."""


class UnsupportedDtype(CheckpointError, TypeError):
    """The output format cannot hold a selected tensor's dtype."""


class SourceChanged(CheckpointError, RuntimeError):
    """The source was overwritten, extended or deleted while it was being read."""


class OutputExists(CheckpointError, FileExistsError):
    """Something is at the output's path already."""


class Busy(CheckpointError, BlockingIOError):
    """Another process holds the lock for the same output."""


class WorkerUnfit(CheckpointError, RuntimeError):
    """A machine that is to share the work does not see the same files, or runs another version of this package."""


class NotEnoughSpace(CheckpointError, OSError):
    """The disk cannot hold the output."""


class Superseded(CheckpointError, RuntimeError):
    """A newer version is whole, and the pipeline stops the merge of an older one for it."""


class StorageError(CheckpointError, OSError):
    """The file system refused an operation (permission, I/O error, vanished directory)."""


class EventUnacceptable(CheckpointError, ValueError):
    """The server takes events, and will never take this one."""


class PaddleMissing(CheckpointError, ImportError):
    """Paddle tensors were asked for, and Paddle cannot be imported."""


class DevicesMissing(CheckpointError, RuntimeError):
    """A step asks for more devices than the host has, or they cannot be counted."""


class DeviceFailed(CheckpointError, RuntimeError):
    """A device, or the process of a step on it, failed before the step was over; nothing is known of the tensors."""


class EngineFailed(CheckpointError, RuntimeError):
    """Paddle's own loader cannot load what a release is to be compared with."""


class SmokeFailed(CheckpointError, RuntimeError):
    """The user's own function does not accept the release, or wrote into it."""


class SigningMissing(CheckpointError, ImportError):
    """A signature was asked for, and model-signing cannot be imported."""


class SigningFailed(CheckpointError, ValueError):
    """The key is none to sign with, or another key has signed already."""


class PrefectUnavailable(CheckpointError, ConnectionError):
    """The flow was asked for, and Prefect's server can be neither reached nor started."""


class RunnerUnavailable(CheckpointError, ConnectionError):
    """The task runner that was asked for is not installed, cannot be reached, or has lost its workers."""


class DashboardMissing(CheckpointError, ImportError):
    """The dashboard was asked for, and NiceGUI cannot be imported."""


class TargetMismatch(CheckpointError, ValueError):
    """The tensors to be filled are not those of the checkpoint: keys, shapes, dtypes or placements."""


class RanksDisagree(CheckpointError, RuntimeError):
    """The ranks of one job chose different versions, or one of them refused; none of them loads."""


class ReleaseInvalid(CheckpointError, ValueError):
    """What was written is not what the plan, the manifest or the expectations say."""


class InvalidExpectations(CheckpointError, ValueError):
    """A document of expected names, shapes and dtypes does not say what it must."""


class InvalidConfig(CheckpointError, ValueError):
    """A file that describes a pipeline does not say what it must."""


class AliasMoved(CheckpointError, RuntimeError):
    """An alias does not name what its mover expected: somebody else was first."""


class PlanChanged(CheckpointError, RuntimeError):
    """What would be removed by now is not what was shown and confirmed."""


class InvalidRetention(CheckpointError, ValueError):
    """The rules of retention keep nothing, or are none."""


class ReleaseNotFound(CheckpointError, FileNotFoundError):
    """The registry has no such name, release or alias."""


class InvalidName(CheckpointError, ValueError):
    """A name would leave the registry or could not be listed back."""
