"""Commands about settings."""

from collections.abc import Mapping

import msgspec
import typer

from mlops_events.control.commands.options import AsJson, ConfigFile, examples, use
from mlops_events.control.commands.root import app
from mlops_events.schemas.settings import KafkaSettings, explain, variable
from mlops_events.schemas.sources import Setting
from mlops_events.sinks.base import installed_sinks
from mlops_events.streams.settings import StreamSettings

__all__ = ["check", "show"]

config_app = typer.Typer(help="The settings: what is in force, and what is wrong.")
app.add_typer(config_app, name="config")


@config_app.command(epilog=examples("mlops-pipeline config show --config site.toml"))
def show(config: ConfigFile = None, as_json: AsJson = False) -> int:
    """Show every setting in force and where it came from."""
    use(config)
    settings = _settings()
    if as_json:
        typer.echo(msgspec.json.encode([msgspec.to_builtins(s, enc_hook=str) for s in settings]))
        return 0
    width = max(len(s.variable or s.name) for s in settings)
    for setting in settings:
        name = setting.variable or setting.name
        place = f"{setting.source} {setting.place}".strip()
        typer.echo(f"{name:{width}}  {setting.problem or _text(setting.value)}  ({place})")
    return 0


@config_app.command(epilog=examples("mlops-pipeline config check --config site.toml"))
def check(config: ConfigFile = None) -> int:
    """Say what is wrong with the settings; exit code 2 if anything is."""
    use(config)
    settings = _settings()
    problems = [setting.problem for setting in settings if setting.problem]
    installed = installed_sinks()
    for setting in settings:
        for name in setting.value if setting.variable == variable("stream", "sinks") else ():
            if not setting.problem and name not in installed:
                typer.echo(
                    f"note: no sink named {name!r} is installed here; there are: "
                    f"{', '.join(installed)}",
                    err=True,
                )
    for problem in dict.fromkeys(problems):
        typer.echo(problem, err=True)
    if not problems:
        typer.echo("all settings can be used")
    return 2 if problems else 0


def _text(value: object) -> str:
    """Return a value as one would write it into a variable."""
    if not value and not isinstance(value, int | float):
        return "-"
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ",".join(map(str, value))
        case Mapping():
            return ",".join(f"{k}={v}" for k, v in value.items())
        case _:
            return str(value)


def _settings() -> list[Setting]:
    from mlops_events.control.store import StoreSettings
    from mlops_events.sinks.console import ConsoleSettings
    from mlops_events.sinks.influxdb_settings import InfluxDBSettings
    from mlops_events.sinks.intake import DeliverSettings
    from mlops_events.sinks.loki_settings import LokiSettings
    from mlops_events.sinks.otlp_settings import OTLPSettings
    from mlops_events.sinks.sqlite import SQLiteSettings
    from mlops_events.sinks.wandb_settings import WandbSettings
    from mlops_events.streams.fleetsettings import FleetStatsSettings

    structs: dict[str, type[msgspec.Struct]] = {
        "kafka": KafkaSettings,
        "stream": StreamSettings,
        "fleet": FleetStatsSettings,
        "sink": DeliverSettings,
        "sqlite": SQLiteSettings,
        "console": ConsoleSettings,
        "influxdb": InfluxDBSettings,
        "loki": LokiSettings,
        "otlp": OTLPSettings,
        "wandb": WandbSettings,
        "store": StoreSettings,
    }
    return [s for prefix, struct in structs.items() for s in explain(struct, prefix)]
