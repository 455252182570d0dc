"""The doctor's checks of the way to Kafka: names, ports, TLS, login, advertised addresses, topics."""

import asyncio
import socket
import ssl
import time
from collections.abc import Collection
from typing import Any, Final

import msgspec

from mlops_events.producers.diagnostics.findings import Finding
from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.events import RAW_KINDS
from mlops_events.schemas.settings import KafkaSettings, variable

__all__ = ["way_to_kafka"]

Address = tuple[str, int]

_SOON_S: Final = 14 * 86_400
_HOSTNAME: Final = (62, 64)
"""Codes of OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and ..._IP_ADDRESS_MISMATCH."""
_EXPIRED: Final = 10


async def way_to_kafka(kafka: KafkaSettings, *, timeout_s: float) -> list[Finding]:
    """Return what is found on the way, up to where it ends.

    Args:
        kafka: the settings.
        timeout_s: of each step; there are at most four.
    """
    try:
        options = kafka.client_options()
    except ConfigError as error:
        return [
            Finding(
                check="broker",
                status="error",
                found=f"{error}",
                cure=f"set {variable('kafka', 'brokers')}; until then nothing is emitted",
            )
        ]
    from aiokafka.conn import collect_hosts

    addresses = sorted((h, port) for h, port, _ in collect_hosts(options["bootstrap_servers"]))
    context: ssl.SSLContext | None = options.get("ssl_context")
    found = list(
        await asyncio.gather(
            *(_reach(address, context, timeout_s, "broker") for address in addresses)
        )
    )
    reached = [a for a, one in zip(addresses, found, strict=True) if one.status != "error"]
    if not reached:
        return found
    found = [_one_of_several(one) for one in found]
    login = await _log_in(reached[0], options, timeout_s)
    found.append(login)
    if login.status != "error":
        found += await _cluster(kafka, options, addresses, timeout_s)
    return found


async def _reach(
    address: Address, context: ssl.SSLContext | None, timeout_s: float, check: str
) -> Finding:
    """Connect, with TLS where that is set."""
    host, port = address
    place = f"{host}:{port}"
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(
                host, port, ssl=context, server_hostname=host if context else None
            ),
            timeout_s,
        )
    except ssl.SSLCertVerificationError as error:
        found = f"{place}: its certificate is not accepted: {error.verify_message}"
        return Finding(check=check, status="error", found=found, cure=_cure(error.verify_code))
    except ssl.SSLError as error:
        return Finding(
            check=check,
            status="error",
            found=f"{place} does not speak TLS: {error.reason or error}",
            cure=f"use its TLS port, or set {variable('kafka', 'security_protocol')} to what it speaks",
        )
    except TimeoutError:
        what = "connects and makes no TLS handshake" if context else "does not answer"
        return Finding(
            check=check,
            status="error",
            found=f"{place} {what} within {timeout_s:g} s",
            cure="is it the right port, and does a firewall let this node through?",
        )
    except (OSError, UnicodeError) as error:
        return _unreachable(check, place, error)
    certificate: dict[str, Any] = writer.get_extra_info("peercert") or {}
    writer.close()
    return _reached(check, place, certificate)


def _one_of_several(finding: Finding) -> Finding:
    """Say of an address that fails while another one works that it is no more than a pity."""
    if finding.status != "error":
        return finding
    return msgspec.structs.replace(finding, status="warning")


def _unreachable(check: str, place: str, error: OSError | UnicodeError) -> Finding:
    if isinstance(error, socket.gaierror | UnicodeError):
        return Finding(
            check=check,
            status="error",
            found=f"{place}: the name cannot be resolved",
            cure="is it spelt right, and does this node's DNS know it?",
        )
    return Finding(
        check=check,
        status="error",
        found=f"{place} cannot be reached: {error.strerror or error}",
        cure="is Kafka running there, and is it the right port?",
    )


def _reached(check: str, place: str, certificate: dict[str, Any]) -> Finding:
    until = certificate.get("notAfter")
    if not until:
        return Finding(check=check, status="ok", found=f"{place} takes connections")
    left_s = ssl.cert_time_to_seconds(until) - time.time()
    if left_s < _SOON_S:
        return Finding(
            check=check,
            status="warning",
            found=f"{place} takes connections with TLS; its certificate ends on {until}",
            cure="have its operator renew it",
        )
    return Finding(
        check=check,
        status="ok",
        found=f"{place} takes connections with TLS; its certificate is good until {until}",
    )


def _cure(code: int) -> str:
    if code in _HOSTNAME:
        return f"name the broker in {variable('kafka', 'brokers')} as its certificate does"
    if code == _EXPIRED:
        return "have its operator renew it; is this node's clock right?"
    return f"set {variable('kafka', 'ssl_ca_file')} to the file of the CA that signed it"


async def _log_in(address: Address, options: dict[str, Any], timeout_s: float) -> Finding:
    """Speak Kafka's protocol, and log in where that is set."""
    from aiokafka import errors
    from aiokafka.conn import create_conn

    host, port = address
    rest = {key: value for key, value in options.items() if key != "bootstrap_servers"}
    try:
        connection: Any = await asyncio.wait_for(
            create_conn(host, port, request_timeout_ms=round(timeout_s * 1000), **rest), timeout_s
        )
    except errors.UnsupportedSaslMechanismError:
        return Finding(
            check="login",
            status="error",
            found=f"{host}:{port} does not offer {options['sasl_mechanism']}",
            cure=f"set {variable('kafka', 'sasl_mechanism')} to what it offers",
        )
    except (errors.AuthenticationFailedError, errors.SaslAuthenticationFailed):
        return Finding(
            check="login",
            status="error",
            found=f"{host}:{port} does not let {options['sasl_plain_username']} in",
            cure=f"check {variable('kafka', 'sasl_username')} and "
            f"{variable('kafka', 'sasl_password')}",
        )
    except (errors.KafkaError, OSError, TimeoutError) as error:
        return Finding(
            check="login",
            status="error",
            found=f"{host}:{port} does not answer as Kafka does: {error or 'no answer'}",
            cure="is it a port of Kafka, and one for "
            f"{variable('kafka', 'security_protocol')}={options['security_protocol']}?",
        )
    connection.close()
    how = options["security_protocol"]
    return Finding(check="login", status="ok", found=f"{host}:{port} answers, {how}")


async def _cluster(
    kafka: KafkaSettings,
    options: dict[str, Any],
    known: Collection[Address],
    timeout_s: float,
) -> list[Finding]:
    """Ask for the cluster's own addresses and its topics."""
    from aiokafka import errors
    from aiokafka.client import AIOKafkaClient

    client = AIOKafkaClient(**options, request_timeout_ms=round(timeout_s * 1000))
    try:
        await asyncio.wait_for(client.bootstrap(), timeout_s)
        cluster: Any = await asyncio.wait_for(client.fetch_all_metadata(), timeout_s)
    except (errors.KafkaError, OSError, TimeoutError) as error:
        return [
            Finding(
                check="cluster",
                status="error",
                found=f"the broker does not say what there is: {error or 'no answer'}",
                cure="look into the broker's log",
            )
        ]
    finally:
        await client.close()
    advertised = [(str(broker.host), int(broker.port)) for broker in cluster.brokers()]
    context = options.get("ssl_context")
    ways = await asyncio.gather(
        *(_reach(a, context, timeout_s, "cluster") for a in advertised if a not in known)
    )
    found = [_advertised(way) for way in ways if way.status == "error"]
    if not found:
        places = ", ".join(f"{host}:{port}" for host, port in advertised)
        found.append(
            Finding(check="cluster", status="ok", found=f"its brokers can be reached: {places}")
        )
    found.append(_topics(kafka, set(cluster.topics())))
    return found


def _advertised(way: Finding) -> Finding:
    """Say that a broker calls itself what this node cannot reach."""
    return Finding(
        check="cluster",
        status="error",
        found=f"Kafka sends this node on to an address that does not work: {way.found}",
        cure="its operator has to set advertised.listeners to what this node can reach",
    )


def _topics(kafka: KafkaSettings, there: set[str]) -> Finding:
    wanted = [kafka.topics.raw(kind) for kind in RAW_KINDS]
    missing = [name for name in wanted if name not in there]
    if not missing:
        return Finding(
            check="topics", status="ok", found=f"all that a node writes to: {kafka.prefix}.*"
        )
    return Finding(
        check="topics",
        status="error",
        found=f"there is no {', '.join(missing)}, or this node may not see it",
        cure=f"`mlops-pipeline topics create`, or the right to write; is "
        f"{variable('kafka', 'prefix')}={kafka.prefix} right?",
    )
