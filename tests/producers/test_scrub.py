"""Secrets and private paths do not leave a node."""

import re
from typing import Any

import msgspec
import pytest

from mlops_events.producers import Emitter, EmitterSettings
from mlops_events.producers.scrub import MASK, Scrubber
from mlops_events.producers.testing import MemoryTransport
from mlops_events.schemas.events import Log, Observation, Run
from mlops_events.schemas.values import ENCODER

SECRETS = {
    "OpenAI": "sk-" + "a1B2" * 8,
    "Anthropic": "sk-ant-api03-" + "x_-9" * 10,
    "Hugging Face": "hf_" + "aB3" * 12,
    "GitHub": "ghp_" + "a1" * 20,
    "GitHub, fine": "github_pat_" + "a1_" * 20,
    "GitLab": "glpat-" + "a1-_" * 6,
    "Slack": "xoxb-1234567890-abc",
    "AWS": "AKIA" + "A1B2" * 4,
    "Google": "AIza" + "aB3_-" * 7,
    "token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjMifQ.c2lnbmF0dXJl",
    "key": "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "wallet": "~/.bittensor/wallets/cold/hotkeys/hot1",
    "wallet of a user": "/home/joe/.bittensor/wallets/cold",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=list(SECRETS))
def test_what_has_a_known_form_is_masked_wherever_it_stands(secret: str) -> None:
    """What stands around it is kept."""
    assert Scrubber().text(f"using {secret} now") == f"using {MASK} now"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("token=abc123 ok", f"token={MASK} ok"),
        ("HF_TOKEN: 'abc123', ok", f"HF_TOKEN: '{MASK}', ok"),
        ('{"password": "geheim!"}', f'{{"password": "{MASK}"}}'),
        ("--api-key=abc123&x=1", f"--api-key={MASK}&x=1"),
        ("Authorization: Bearer abc.def-123", f"Authorization: {MASK}"),
        ("header Bearer abc.def-123", f"header Bearer {MASK}"),
        ("postgres://joe:hunter2@db/x", f"postgres://joe:{MASK}@db/x"),
    ],
)
def test_what_stands_behind_a_name_is_masked(text: str, clean: str) -> None:
    """As programs print settings, headers and addresses."""
    assert Scrubber().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "tokens_per_second=1234.5",
        "num_tokens: 4096",
        "secretary=Jane",
        "the token was refreshed",
        "peer 10.0.0.7:8091",
        "https://example.com:443/a@b",
        "step 12 loss 0.5 sha 3f786850e387550fdab836ed7e6dc881de23001b",
    ],
)
def test_what_is_no_secret_is_kept(text: str) -> None:
    """Counts of tokens, hashes and public addresses are data."""
    assert Scrubber().text(text) == text


def test_all_below_a_secret_name_is_masked() -> None:
    """Whatever it looks like; numbers are kept."""
    values = {
        "wandb_api_key": "x", "client-secret": ["a"], "credentials": {"user": "joe"},
        "token": 7, "tokens": "many", "password": "", "nested": {"list": [{"hfToken": "a"}]},
    }  # fmt: skip

    assert Scrubber().mapping(values) == {
        "wandb_api_key": MASK, "client-secret": MASK, "credentials": MASK,
        "token": 7, "tokens": "many", "password": "", "nested": {"list": [{"hfToken": "a"}]},
    }  # fmt: skip


def test_private_addresses_and_own_patterns_by_setting() -> None:
    """Others are kept."""
    scrubber = Scrubber([r"hotkey-\d+"], private_addresses=True)

    text = "10.1.2.3 172.16.0.1 192.168.1.1 fd00:0:0::1 fe80::1 8.8.8.8 172.32.0.1 hotkey-77"
    assert scrubber.text(text) == f"{MASK} {MASK} {MASK} {MASK} {MASK} 8.8.8.8 172.32.0.1 {MASK}"


def test_an_event_without_secrets_is_the_same_object() -> None:
    """Most are; they cost one look."""
    event = ENCODER.encode(Log(ts=1, level="info", message="tokens 5", fields={"loss": 0.5}))

    assert Scrubber().event(event) is event


def test_a_pattern_that_is_none_is_named() -> None:
    """When the program starts, not when it logs."""
    with pytest.raises(ValueError, match=re.escape("'(' is no regular expression")):
        EmitterSettings(scrub_patterns=("(",))


def _emit(**settings: Any) -> list[Any]:
    transport = MemoryTransport()
    secret = SECRETS["Hugging Face"]
    with Emitter(
        run="r",
        transport=transport,
        settings=EmitterSettings(**settings),
        config={"hf_token": "abc", "lr": 1e-4, "home": "/home/joe/.bittensor/wallets/a"},
        tags={"wallet": "~/.bittensor/wallets/a"},
    ) as events:
        for _ in range(2):
            events.observe("training", {"loss": 0.5}, step=1, tags={"auth": secret})
        events.observe("odd", {"loss": 0.5}, tags={"auth": secret, "n": 1})
        events.log("info", f"login with {secret}", api_key="abc", tokens=5)
    return [*transport.events(), transport.frames()[0].origin]


def test_nothing_secret_leaves_an_emitter() -> None:
    """Neither in tags, nor in lines, nor in the configuration, nor in the origin."""
    found = _emit()

    text = msgspec.json.encode([msgspec.to_builtins(event) for event in found]).decode()
    assert "aB3aB3" not in text
    assert "wallets" not in text
    run = next(event for event in found if isinstance(event, Run))
    assert run.config == {"hf_token": MASK, "lr": 1e-4, "home": MASK}
    log = next(event for event in found if isinstance(event, Log))
    assert (log.message, log.fields) == (f"login with {MASK}", {"api_key": MASK, "tokens": 5})
    rows = [event for event in found if isinstance(event, Observation)]
    assert [row.tags["auth"] for row in rows] == [MASK] * 3
    assert [row.fields for row in rows] == [{"loss": 0.5}] * 3


def test_it_can_be_switched_off() -> None:
    """For those who know what they log."""
    text = repr(_emit(scrub=False))

    assert "aB3aB3" in text
    assert "wallets" in text
