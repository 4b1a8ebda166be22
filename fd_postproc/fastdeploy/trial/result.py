"""The result of a trial, of the engine's class or of the API server's parts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrialResult:
    """Whether our code may be used with the installed FastDeploy, and the reason.

    Attributes
    ----------
    compatible : bool
    reason : str
        One sentence in plain words; of a difference, the first one.
    features : tuple of str
        What this FastDeploy has that others do not, in plain words.
    seconds : float
        How long the check took.
    traits : dict of str to bool
        Attributes that our class has to have for this FastDeploy.
    forced : bool
        Compatible only because ``FD_POSTPROC_FORCE`` says so; the reason tells the difference.
    left : tuple of (str, str)
        Parts that are left to FastDeploy, and why.
    unknown : tuple of str
        FastDeploy's methods that ours replace, and whose code is not one that this release knows.
    """

    compatible: bool
    reason: str
    features: tuple[str, ...] = ()
    seconds: float = 0.0
    traits: dict[str, bool] = field(default_factory=dict)
    forced: bool = False
    left: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
