"""What an experiment is: a function that builds hosts, a wire and a workload and returns figures, with its variants.

    @experiment(
        "my-question",
        "One line that says what is asked",
        variants={"before": {"pytcp.grow_skb": 0}, "after": {"pytcp.grow_skb": 1}},
    )
    def run(world: World, rtt: Time = 40 * MS, size: Bytes = 2_000_000) -> Figures:
        ...
        return {"seconds": flow.seconds, "packets": sender.counters["IpOutRequests"]}

The parameters after the world are what may be set beside sysctls (`pytcp lab run my-question --set rtt=10ms`); their
annotations say in which units. A variant is a set of such settings. Settings of a sysctl count for every host, or for one
with its name before: `client:net.ipv4.tcp_sack`. Later ones win: the profile, the experiment's, the variant's, the user's.

Experiments are found by name among `pytcp.lab.experiments`, or in a file by its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import math
import pkgutil
import platform
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import pytcp
from pytcp.net import sysctl
from pytcp.tcp import profiles

from . import experiments, units
from .named import naming
from .record import Record
from .units import Between, Kind

if TYPE_CHECKING:
    from pytcp.link.delayed import Delayed

    from .world import World

Setting = int | float | str
Figures = Mapping[str, float]

NO_PYTHON = "not a Python file, which an experiment of your own is"
ALIASES = {"cc": "net.ipv4.tcp_congestion_control"}


class ExperimentError(Exception):
    """The user's mistake: in the settings, or in an experiment's file; the message says where."""


class RunError(ExperimentError):
    """The call made sense, the work failed: a mistake in an experiment's file, something that is not there or in the way."""


class Figure(NamedTuple):
    """How one figure is shown."""

    key: str
    label: str
    form: str = "{:,.0f}"
    claimed: bool = True  # False: printed beside the published one, which it is not meant to reproduce


class Parameter(NamedTuple):
    """One thing of an experiment that may be set."""

    name: str
    default: Any
    kind: Kind | None  # of a quantity
    choices: tuple[str, ...] = ()
    limits: Between | None = None

    def parse(self, value: Setting) -> Any:
        """The value a setting stands for. Raises ExperimentError."""
        try:
            parsed = self._parse(value)
            if self.limits is not None:
                self.limits.check(parsed)
            return parsed
        except ValueError as error:
            raise ExperimentError(f"{self.name}: {error}") from None

    def _parse(self, value: Setting) -> Any:
        if self.choices:
            if str(value) not in self.choices:
                raise ValueError(f"{value!r} is not one of {', '.join(self.choices)}")
            return str(value)
        if self.kind is not None:
            return value if isinstance(value, int) and not isinstance(value, bool) else units.parse(str(value), self.kind)
        if isinstance(self.default, bool):
            words = {"0": False, "no": False, "false": False, "off": False, "1": True, "yes": True, "true": True, "on": True}
            if str(value).lower() not in words:
                raise ValueError(f"{value!r} is neither yes nor no")
            return words[str(value).lower()]
        if isinstance(self.default, int | float):
            try:
                return type(self.default)(value)
            except ValueError:
                raise ValueError(f"{value!r} is not a {'whole ' if isinstance(self.default, int) else ''}number") from None
        return str(value)

    def show(self) -> str:
        """The default, as it would be written."""
        if self.kind is not None:
            return units.show(self.default, self.kind)
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return str(self.default)


class Settings(NamedTuple):
    """What one run of one variant goes by."""

    parameters: dict[str, Any]
    sysctls: list[tuple[str, str, Setting]]  # (host or "" for all, name, value), later ones win
    profile: str


class OverTap(NamedTuple):
    """How an experiment runs against the kernel (`lab.real`)."""

    run: Callable[..., Awaitable[Figures]]
    parameters: frozenset[str]
    sysctls: dict[str, int | str]
    mtu: int
    completions: Callable[..., str | Delayed] | None


class Experiment:
    """An experiment; `@experiment(...)` makes it of a function."""

    def __init__(
        self,
        run: Callable[..., Figures],
        name: str,
        title: str,
        *,
        variants: Mapping[str, Mapping[str, Setting]] | None = None,
        published: Mapping[str, Figures] | None = None,
        settings: Mapping[str, Setting] | None = None,
        profile: str = profiles.DEFAULT,
        figures: Sequence[Figure] = (),
        compare: tuple[str, str] | None = None,
        source: str = "",
        differences: Sequence[str] = (),
        fitted: Sequence[str] = (),
        real: str = "",
        serial: bool = False,
    ) -> None:
        """variants: name -> settings; without any there is one, "only". published: name -> figures. settings: of all variants.
        profile: the kernel whose defaults the hosts have.
        figures: how they are shown, and in which order. compare: (before, after), of which ratios are printed.
        source: where the published figures are from. differences: sentences, which differences are expected and why.
        fitted: what was chosen to suit the published figures. real: what `--real` can do, and what it cannot.
        serial: its variants want the machine to themselves.
        Raises ExperimentError for a variant that nobody could set."""
        self.run = run
        self.name = name
        self.title = title
        self.variants = {key: dict(value) for key, value in (variants or {}).items()} or {"only": {}}
        self.published = {key: dict(value) for key, value in (published or {}).items()}
        self.settings = dict(settings or {})
        self.profile = profile
        self.figures = tuple(figures)
        self.compare = compare
        self.source = source
        self.differences = tuple(differences)
        self.fitted = tuple(fitted)
        self.real = real
        self.real_run: OverTap | None = None
        self.serial = serial
        self.file = Path(inspect.getfile(run)).resolve()
        self.doc = inspect.getdoc(inspect.getmodule(run)) or ""
        self.parameters = {parameter.name: parameter for parameter in _parameters(run)}
        for variant in (*self.published, *(compare or ())):
            if variant not in self.variants:
                raise ExperimentError(f"{self.name}: there are figures of {variant!r}, which is no variant; {units.nearest(variant, self.variants)}")
        for variant in self.variants:
            self.resolve(variant, ())

    def over_tap(
        self, *, sysctls: Mapping[str, int | str] | None = None, mtu: int = 1500, completions: Callable[..., str | Delayed] | None = None
    ) -> Callable[[Callable[..., Awaitable[Figures]]], OverTap]:
        """Decorates what `--real` runs: `async def f(real: Real, ...)`, parameters as of the experiment. sysctls: of the kernel's side.
        mtu: of the TAP. completions: gives those of our ring, from parameters of the experiment by their names."""

        def decorate(run: Callable[..., Awaitable[Figures]]) -> OverTap:
            self.real_run = OverTap(run, frozenset(list(inspect.signature(run).parameters)[1:]), dict(sysctls or {}), mtu, completions)
            return self.real_run

        return decorate

    @property
    def builtin(self) -> bool:
        """It is one of pytcp's own."""
        return self.file.parent == Path(experiments.__file__).parent

    def resolve(self, variant: str, sets: Iterable[tuple[str, Setting]], profile: str = "") -> Settings:
        """The settings of a variant, over those of a profile ("": the experiment's), with the user's on top. Raises ExperimentError, naming what is near."""
        if variant not in self.variants:
            raise ExperimentError(f"{self.name} has no variant {variant!r}; {units.nearest(variant, self.variants)}")
        name_of_profile = profile or self.profile
        if name_of_profile not in profiles.NAMES:
            raise ExperimentError(f"there is no profile {name_of_profile!r}; {units.nearest(name_of_profile, profiles.NAMES)}")
        settings = Settings({name: parameter.default for name, parameter in self.parameters.items()}, [], name_of_profile)
        for key, value in (*self.settings.items(), *self.variants[variant].items(), *sets):
            if key in self.parameters:
                settings.parameters[key] = self.parameters[key].parse(value)
            else:
                settings.sysctls.append(self._sysctl(key, value))
        return settings

    def distinct(self, sets: Sequence[tuple[str, Setting]], profile: str = "") -> list[str]:
        """The variants that still differ with the user's settings on top. Of those that do not, the one which says the same by itself,
        or else the first. Raises ExperimentError."""
        kept: dict[str, str] = {}
        for name, own in self.variants.items():
            state = _state(self.resolve(name, sets, profile))
            others = [(key, value) for key, value in sets if key not in own]
            if state not in kept or (len(others) < len(sets) and state == _state(self.resolve(name, others, profile))):
                kept[state] = name
        return [name for name in self.variants if name in kept.values()]

    def _sysctl(self, key: str, value: Setting) -> tuple[str, str, Setting]:
        host, _, name = key.rpartition(":")
        name = ALIASES.get(name, name)
        try:
            sysctl.set_(sysctl.Sysctl(), name, value if isinstance(value, int) else str(value))
        except sysctl.UnknownSysctl:
            own = [*self.parameters, *ALIASES]
            near = units.near(name, [*own, *(entry.name for entry in sysctl.TABLE)])
            hint = f"near: {', '.join(near)}" if near else f"there are: {', '.join(own)}, or any sysctl"
            raise ExperimentError(f"{self.name} has no setting {key!r}; {hint}") from None
        except OSError as error:
            raise ExperimentError(str(error.strerror)) from None
        return host, name, value


def _state(settings: Settings) -> str:
    """What two variants share that cannot differ: parameters, and sysctls by their last values, in the order these were given."""
    last: dict[tuple[str, str], str] = {}
    for host, name, value in settings.sysctls:
        last.pop((host, name), None)
        last[host, name] = str(value)
    return repr((settings.parameters, list(last.items()), settings.profile))


def experiment(name: str, title: str, **about: Any) -> Callable[[Callable[..., Figures]], Experiment]:
    """Make an `Experiment` of the function below; `about` as there."""
    return lambda run: Experiment(run, name, title, **about)


def _parameters(run: Callable[..., Figures]) -> Iterable[Parameter]:
    for name, given in list(inspect.signature(run, eval_str=True).parameters.items())[1:]:
        if given.default is inspect.Parameter.empty:
            raise ExperimentError(f"parameter {name!r} has no default")
        about = getattr(given.annotation, "__metadata__", ())
        kind = next((each for each in about if isinstance(each, Kind)), None)
        limits = next((each for each in about if isinstance(each, Between)), None)
        choices = get_args(given.annotation) if get_origin(given.annotation) is Literal else ()
        yield Parameter(name, given.default, kind, choices, limits)


# --- finding them ---


def names() -> list[str]:
    """The names of pytcp's own experiments."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(experiments.__path__))


def load(which: str) -> Experiment:
    """The experiment of a name, or of a file's path (with `:NAME` behind it where there are several).

    Raises ExperimentError: an unknown name with what is near it, a mistake in the file with its line."""
    path, _, wanted = which.partition(":")
    if not path.endswith(".py") and "/" not in path:
        if which not in names():
            if Path(path).is_file():
                raise ExperimentError(f"{path}: {NO_PYTHON}")
            own = f"./{Path(path).stem}.py"
            raise ExperimentError(f"there is no experiment {which!r}; {units.nearest(which, names())} (a file of your own needs its path: {own})")
        module = importlib.import_module(f"{experiments.__name__}.{which.replace('-', '_')}")
        return _in_module(vars(module), which, which)
    file = Path(path).resolve()
    if not file.is_file():
        raise ExperimentError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"experiment_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"{path}: {NO_PYTHON}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise blame(error, file) from error
    return _in_module(vars(module), path, wanted)


def _in_module(namespace: Mapping[str, Any], path: str, wanted: str) -> Experiment:
    found = {value.name: value for value in namespace.values() if isinstance(value, Experiment)}
    if not found:
        raise ExperimentError(f"{path}: has no experiment; put @experiment(NAME, TITLE) before the function that runs it")
    if wanted in found or (not wanted and len(found) == 1):
        return found[wanted] if wanted else next(iter(found.values()))
    ask = units.nearest(wanted, found) if wanted else f"say which: {', '.join(f'{path}:{name}' for name in found)}"
    raise ExperimentError(f"{path}: has no experiment {wanted!r}; {ask}" if wanted else f"{path}: has {len(found)} experiments; {ask}")


def blame(error: BaseException, file: Path, otherwise: int = 1) -> RunError:
    """`error` as a message that shows the line of `file` it came from; the line `otherwise` if it came from none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == file:
        line, what = error.lineno or 1, error.msg
    else:
        here = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == file]
        line = here[-1] if here and here[-1] else otherwise
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        name = "" if isinstance(error, ExperimentError | OSError) else type(error).__name__
        what = ": ".join(part for part in (name, text) if part) or type(error).__name__
    linecache.checkcache(str(file))
    return RunError(f"{file}:{line}: {what}\n    {linecache.getline(str(file), line).strip()}")


# --- running them ---


class Table(NamedTuple):
    """Something an experiment shows beside its figures."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Outcome(NamedTuple):
    """What one variant gave."""

    figures: dict[str, float]
    tables: list[Table]


def empty_record(chosen: Experiment, variant: str, settings: Settings, **about: object) -> Record:
    """A record that says what is going to run."""
    shown = {**settings.parameters, **{f"{host}:{key}" if host else key: value for host, key, value in settings.sysctls}}
    meta = {"experiment": chosen.name, "title": chosen.title, "variant": variant, "profile": settings.profile, **about}
    return Record({**meta, "settings": shown, "versions": {"pytcp": pytcp.__version__, "python": platform.python_version()}})


def checked(figures: object) -> dict[str, float]:
    """What an experiment returned, if it can be printed. Raises ExperimentError."""
    if not isinstance(figures, Mapping):
        raise ExperimentError(f"returned {figures!r}, which is no dict of figures")
    for name, value in figures.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ExperimentError(f"returned {value!r} as figure {name!r}, which is no number")
    return dict(figures)


def run_variant(
    which: str,
    variant: str,
    seed: int = 0,
    profile: str = "",
    sets: Sequence[tuple[str, Setting]] = (),
    pcap: str = "",
    record: str = "",
) -> Outcome:
    """Run one variant of one experiment, in this process. pcap, record: files to write. Raises ExperimentError, OSError for the files."""
    from .world import World

    chosen = load(which)
    settings = chosen.resolve(variant, sets, profile)
    kept = empty_record(chosen, variant, settings, seed=seed) if record else None
    world: World = World(variant, seed, settings.profile, settings.sysctls, pcap, kept)
    try:
        figures = checked(chosen.run(world, **settings.parameters))
        world.check_hosts()
    except Exception as error:
        if chosen.builtin and (isinstance(error, ExperimentError) or not sets):
            raise
        # with settings of the user's it is most likely one of those that makes no sense
        raise blame(error, chosen.file, inspect.getsourcelines(chosen.run)[1]) from error
    finally:
        world.close()
    if world.capture_error is not None:
        raise OSError(world.capture_error.errno, world.capture_error.strerror, pcap)
    if kept is not None:
        with naming(record):
            kept.write_jsonl(record)
    return Outcome(figures, world.tables)
