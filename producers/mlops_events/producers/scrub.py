"""Takes secrets and private paths out of tags, log lines and configurations, before they are sent.

It works on encoded events, off the caller's thread: one search through an event's bytes finds out
that there is nothing to do; only then is it taken apart.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from mlops_events.schemas.values import ENCODER

__all__ = ["MASK", "Scrubber"]

MASK: Final = "***"

_NAMES: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "private_key",
    "private-key",
    "mnemonic",
    "seed_phrase",
    "credential",
    "credentials",
    "authorization",
    "cookie",
)
"""What stands behind one of these is a secret, also behind `hf_token` or `client-secret`."""


class _Rule(NamedTuple):
    """What a secret looks like; the pattern is tried where one of the words is found.

    A group of the pattern is kept, all else that it finds is masked.
    """

    words: tuple[str, ...]
    pattern: "re.Pattern[str]"


def _rule(words: Iterable[str], pattern: str) -> _Rule:
    return _Rule(tuple(words), re.compile(pattern, re.IGNORECASE))


_RULES: Final = (
    _rule(
        _NAMES,
        rf"(?<![a-z0-9])((?:{'|'.join(_NAMES)})[\"']?\s*[=:]\s*[\"']?)"
        r"(?:(?:bearer|basic)\s+)?[^\s\"',;&)]{3,}",
    ),
    _rule(("bearer ", "basic "), r"(\b(?:bearer|basic)\s+)[a-z0-9._~+/=-]{8,}"),
    _rule(("://",), r"(://[^\s/:@]*:)[^\s/@]+(?=@)"),
    _rule(("sk-", "pk-", "rk-"), r"\b[spr]k-[a-z0-9_-]{20,}"),  # OpenAI, Anthropic, Stripe
    _rule(("hf_",), r"\bhf_[a-z0-9]{30,}"),  # Hugging Face
    _rule(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[a-z0-9]{36,}"),
    _rule(("github_pat_",), r"\bgithub_pat_[a-z0-9_]{40,}"),
    _rule(("glpat-",), r"\bglpat-[a-z0-9_-]{20,}"),
    _rule(("xox",), r"\bxox[abprs]-[a-z0-9-]{10,}"),  # Slack
    _rule(("akia", "asia"), r"\bA[KS]IA[A-Z0-9]{16}\b"),  # AWS
    _rule(("aiza",), r"\bAIza[a-z0-9_-]{35}"),  # Google
    _rule(("eyj",), r"\beyJ[a-z0-9_-]{10,}\.[a-z0-9_-]{10,}\.[a-z0-9_-]*"),  # JSON web token
    _rule(
        ("private key",),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]*-----END [A-Z ]*PRIVATE KEY-----)?",
    ),
    _rule(
        (".bittensor",),
        r"(?:~|/home/[^/\s]+|/root|/Users/[^/\s]+)?/\.bittensor/wallets(?:/[^\s'\",:;)]*)?",
    ),
)

_ADDRESSES: Final = (
    r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})\b",
    r"\b(?:f[cd][0-9a-f]{2}|fe80)(?::[0-9a-f]{0,4}){2,7}",
)


class Scrubber:
    """Masks what should not leave a node.

    Keys and tokens that have a known form, values that stand behind a name such as `password=` or
    `api_key:`, passwords in addresses, and paths to wallets. Of a mapping, all text below such a
    name is masked, whatever it looks like; names that merely contain one, such as
    `tokens_per_second`, are not.

    Args:
        patterns: more regular expressions; what they find is masked.
        private_addresses: whether addresses of private networks are masked too.

    Raises:
        ValueError: a pattern is no regular expression.
    """

    def __init__(self, patterns: Iterable[str] = (), *, private_addresses: bool = False) -> None:
        self._always = [re.compile(p) for p in _ADDRESSES] if private_addresses else []
        for pattern in patterns:
            try:
                self._always.append(re.compile(pattern))
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        words = sorted({word for rule in _RULES for word in rule.words})
        self._words = [  # those that no other one is part of
            word.encode() for word in words if not any(o in word and o != word for o in words)
        ]
        self._secret = re.compile(rf"(?:.*[^a-z0-9])?(?:{'|'.join(_NAMES)})\Z", re.IGNORECASE)

    def event(self, encoded: bytes) -> bytes:
        """Return an encoded event without secrets: itself, if there are none."""
        if not self._always:
            plain = encoded.lower()
            if not any(word in plain for word in self._words):
                return encoded
        value = msgspec.msgpack.decode(encoded)
        clean = self._value(value)
        return encoded if clean == value else ENCODER.encode(clean)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        plain = text.lower()
        for rule in _RULES:
            for word in rule.words:
                if word in plain:
                    text = rule.pattern.sub(_mask, text)
                    break
        for pattern in self._always:
            text = pattern.sub(MASK, text)
        return text

    def mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a mapping without secrets."""
        return {
            key: MASK if self._is_secret(key, value) else self._value(value)
            for key, value in values.items()
        }

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self.mapping(value)
        if isinstance(value, list):
            return [self._value(member) for member in value]
        return value

    def _is_secret(self, key: Any, value: Any) -> bool:
        return (
            isinstance(value, str | list | dict)
            and bool(value)
            and bool(self._secret.match(str(key)))
        )


def _mask(found: "re.Match[str]") -> str:
    return "".join(group for group in found.groups() if group) + MASK
