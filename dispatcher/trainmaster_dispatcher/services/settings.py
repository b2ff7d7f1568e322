"""Settings of the dispatcher's processes, from environment variables."""

import os
import re
from ipaddress import ip_network

from pydantic import AliasChoices, Field, SecretStr, TypeAdapter, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainmaster.protocol.base import worded_pattern
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.labels import LabelKey
from trainmaster.protocol.notices import EMAIL_PATTERN
from trainmaster.protocol.suggestions import similar
from trainmaster.protocol.validation_errors import sentence_of
from trainmaster_dispatcher.domain.connection_bounds import ConnectionBounds
from trainmaster_dispatcher.domain.default_requests import read_memory_limit, read_requests
from trainmaster_dispatcher.domain.id_claims import Issuer, check_issuer, check_origin
from trainmaster_dispatcher.domain.mail_server import MailServer, read_mail_server
from trainmaster_dispatcher.domain.webhooks import AddressPolicy, Persistence
from trainmaster_dispatcher.scheduling.state.usage_decay import USER_HALF_LIFE
from trainmaster_dispatcher.store import redis_address
from trainmaster_dispatcher.store.database import check_address
from trainmaster_dispatcher.store.file_store import check_files_url
from trainmaster_dispatcher.store.log_store import check_url

_SHORTEST_SECRET = 16
_SHORTEST_HALF_LIFE = 60.0
_LEAST_KEPT = {
    "keep_events": "1d",
    "keep_jobs": "1h",
    "keep_idempotency": "7d",
    "keep_changes": "1h",
    "keep_audit": "1d",
    "keep_output": "1h",
    "keep_files": "1h",
}
"""Events and changes: the scheduler reads the newest. Idempotency keys: they are promised for seven days."""


_PLAIN = ("DATABASE_URL", "REDIS_URL")
_PREFIX = "TRAINMASTER_"
_SIMILAR = 0.8
"""Part of a name that has to agree with a setting's. The environment has other names with this prefix, such as those of the
command line, of members, and those that Kubernetes makes of a Service."""


def mistakes_in(error: ValidationError) -> list[str]:
    """Return a sentence for each setting that is wrong, with the name of its environment variable."""
    said = []
    for item in error.errors(include_url=False):
        name = str(item["loc"][0]).upper().removeprefix(_PREFIX)
        said.append(f"setting {name if name in _PLAIN else _PREFIX + name}: {sentence_of(item)}")
    return said


def mistyped() -> list[str]:
    """Return a sentence for each environment variable whose name is similar to that of a setting but is none."""
    known = {name.upper() for name in Settings.model_fields}
    said = []
    for name in sorted(os.environ):
        own = name.removeprefix(_PREFIX)
        if own == name or own in known:
            continue
        found = similar(own, known, _SIMILAR)
        if found:
            said.append(f"{name} is not a setting and has no effect; did you mean {_PREFIX}{found}?")
    return said


_DOMAIN = re.compile(r"\.?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEYS = TypeAdapter[str](LabelKey)


class Settings(BaseSettings):
    """``DATABASE_URL`` and ``REDIS_URL`` are plain; everything else has the prefix ``TRAINMASTER_``."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    database_url: str = Field(default="", validation_alias=AliasChoices("DATABASE_URL", "TRAINMASTER_DATABASE_URL"))
    redis_url: str | None = Field(default=None, validation_alias=AliasChoices("REDIS_URL", "TRAINMASTER_REDIS_URL"))

    lease_seconds: float = Field(default=15.0, gt=0.2, le=600)
    """L: an agent's right to act, renewed at each sync."""
    lost_margin_seconds: float = Field(default=2.0, ge=0.1, le=600)
    """Added to a disconnect limit before its runs are called lost."""
    leader_seconds: float = Field(default=3.0, gt=0.5, le=60)
    """How long a silent leader stays leader."""
    scheduler_read_host: str = "127.0.0.1"
    """Where a scheduler listens for the apis' questions; with 0.0.0.0 it is reached at the address that Postgres sees it at."""
    scheduler_read_port: int = Field(default=0, ge=0, le=65_535)
    """0: any that is free."""
    cool_down_factor: float = Field(default=1.0, gt=0, le=100)
    """Scales how long a cluster that returned a job is left out for it."""
    usage_half_life: Duration | None = None
    """After so long, what a queue has used counts half as much for its turn; without it only what it uses now counts."""
    user_usage_half_life: Duration = USER_HALF_LIFE
    """The same for users in a queue; with 0s only what they use now counts."""
    predict_run_times: bool = True
    """Whether plans, and the order by slowdown, expect a job to take as long as such jobs did before; else as its time limit says."""
    currency: str = Field(default="EUR", pattern=worded_pattern(r"^[A-Z]{3}$", "three capital letters, such as EUR"))
    """What all money is in; other currencies have an exchange rate in their price book."""
    usage_labels: str = ""
    """Keys of jobs' labels by which usage is counted, with commas between."""
    largest_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    most_body_bytes_at_once: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Of all requests that are being read and answered, agents' excepted; further ones are refused with a time to retry after."""
    most_agent_body_bytes_at_once: int = Field(default=256 * 1024 * 1024, ge=1024)
    """The same for agents' requests. Those of one key have at most ``largest_body_bytes``."""
    largest_header_bytes: int = Field(default=64 * 1024, ge=8 * 1024, le=1024 * 1024)
    header_seconds: float = Field(default=15.0, ge=0.1, le=600)
    """For the whole header of a request, and for the first byte of a connection."""
    body_seconds: float = Field(default=30.0, ge=0.1, le=3600)
    body_bytes_per_second: int = Field(default=4096, ge=1)
    """A body may take ``body_seconds`` and, beyond that, the time at this rate of what has come."""
    whole_body_seconds: float = Field(default=600.0, ge=0.1, le=86_400)
    unread_answer_seconds: float = Field(default=60.0, ge=0.1, le=3600)
    """How long a peer may leave an answer unread that does not fit into the connection's buffers."""
    keep_alive_seconds: float = Field(default=75.0, ge=1, le=3600)
    most_connections: int = Field(default=10_000, ge=10)
    most_connections_per_address: int = Field(default=0, ge=0)
    """0: no bound, as many agents and users may share an address. Trusted proxies have none."""
    trusted_proxies: str = ""
    """Addresses and CIDRs, with commas between, whose X-Forwarded-For says who calls."""
    calls_per_second_per_key: float = Field(default=25.0, ge=0, le=1_000_000)
    """Of users' keys; 0: no bound. Keys of admins and agents have none."""
    calls_burst_per_key: int = Field(default=500, ge=1)
    """Calls that a key may make at once after it made none for a while."""
    calls_at_once_per_key: int = Field(default=2, ge=0, le=10_000)
    """Of users' keys; further ones wait for their turn, so that no key's calls wait behind all of another's. 0: no bound."""
    wrong_keys_per_second: float = Field(default=2.0, ge=0, le=1_000_000)
    wrong_keys_burst: int = Field(default=50, ge=1)
    """Of one address; 0 per second: no bound. Keys that count are served all the same."""
    keyless_calls_per_second: float = Field(default=50.0, ge=0, le=1_000_000)
    keyless_calls_burst: int = Field(default=500, ge=1)
    """Of one address, without any key; 0 per second: no bound."""
    event_streams_per_key: int = Field(default=500, ge=0)
    log_streams_per_key: int = Field(default=100, ge=0)
    member_streams_per_key: int = Field(default=100, ge=0)
    member_stream_bytes_per_second: int = Field(default=0, ge=0)
    """At one api; 0: no bound. The bytes are of all streams of a key together, both ways."""
    stream_host: str = "127.0.0.1"
    """Where an api listens for streams to members whose agents have reached another api; 0.0.0.0 as for ``scheduler_read_host``."""
    stream_port: int = Field(default=0, ge=0, le=65_535)
    """0: any that is free."""
    sessions_domain: str = Field(
        default="",
        max_length=180,
        pattern=worded_pattern(
            r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*)?$",
            "a domain in lower case, such as sessions.example.com",
        ),
    )
    """Browsers open ports of jobs at hosts of this domain. Empty: they do not."""
    inline_body_bytes: int = Field(default=32 * 1024, ge=0)
    """Bodies above this are parsed in a process of their own, so that no other call waits for them: 32 KiB take 40 ms."""
    parser_memory_bytes: int = Field(default=512 * 1024 * 1024, ge=0)
    """For one body in such a process, beyond what the process has when it starts; 0: no bound."""
    most_jobs_per_call: int = Field(default=10_000, ge=1)
    most_parameter_sets: int = Field(default=100_000, ge=1)
    default_requests: str = "cpu=100m,memory=64Mi"
    """What a member is given that requests none of these, so that quota, fair share and prices count it. Empty: nothing."""
    default_memory_limit: str = "1Gi"
    """Of a container of a pod template that names no memory: limited to its request, few programs would start. Empty: its request."""
    most_queued_jobs: int = Field(default=1_000_000, ge=0)
    most_queued_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)
    most_queued_shapes: int = Field(default=2_000, ge=0)
    """Of users, in one queue; 0: no bound."""
    most_queued_jobs_per_user: int = Field(default=200_000, ge=0)
    most_queued_bytes_per_user: int = Field(default=256 * 1024 * 1024, ge=0)
    most_queued_shapes_per_user: int = Field(default=500, ge=0)
    """Of one user's key, in one queue; 0: no bound."""
    pool_size: int = Field(default=10, ge=1, le=200)
    start_retry_seconds: float = Field(default=30.0, ge=0)
    """How long a starting process tries to reach its store before it gives up."""

    oidc_issuer: str = ""
    """Address of the OpenID Connect issuer with whose accounts people sign in. Empty: there are only API keys."""
    oidc_client_ids: str = Field(default="", validate_default=True)
    """Client ids for which tokens may be made, with commas between. The command line signs in with the first."""
    oidc_public_client_secret: str = ""
    """Secret of the first client, which everybody gets who asks how to sign in."""
    oidc_user_claims: str = "email,preferred_username"
    """Claims that may have the name of a user, with commas between: the first that a token has."""
    oidc_groups_claim: str = "groups"
    oidc_ca_file: str = ""
    """Certificates to verify the issuer by. Empty: those of the system."""
    oidc_issuers_file: str = ""
    """A file with further issuers. Only apis read it."""

    public_url: str = ""
    """Address at which browsers reach the apis, and of links in messages. Without it browsers sign in by a key alone."""
    dashboard: bool = True
    """Whether apis for users serve the page at ``/``."""
    oidc_browser_client_id: str = ""
    """Client as which browsers sign in. Empty: the first one of ``oidc_client_ids``."""
    oidc_browser_client_secret: SecretStr = SecretStr("")
    """Its secret; empty: it is a public client."""

    webhook_secret: SecretStr = SecretStr("")
    """Signs webhook messages; several, with commas between, sign each. Without one no webhooks are taken or sent."""
    webhook_allow_http: bool = False
    webhook_allow_networks: str = ""
    """CIDRs that webhooks may go to although they are not public, with commas between."""
    webhook_timeout_seconds: float = Field(default=5.0, ge=0.1, le=60)
    """For the look-up of a host, to connect to it, and between two pieces of its answer."""
    webhook_concurrency: int = Field(default=128, ge=1, le=1000)
    webhook_attempts: int = Field(default=12, ge=1, le=1000)
    webhook_give_up: Duration = "24h"
    webhook_first_retry_seconds: float = Field(default=5.0, gt=0, le=3600)
    webhook_most_retry_seconds: float = Field(default=600.0, gt=0, le=86_400)

    smtp_url: SecretStr = SecretStr("")
    """Mail server: ``smtp://HOST:PORT`` with STARTTLS or ``smtps://HOST:PORT``, with ``USER:PASSWORD@`` before the host where it
    needs that. Empty: no e-mail is taken or sent.
    """
    smtp_password: SecretStr = SecretStr("")
    """Password for the mail server, where the URL has the user alone."""
    smtp_allow_plain: bool = False
    """Whether ``smtp://`` may be without TLS; to this machine it may."""
    smtp_ca_file: str = ""
    """Certificates to verify the mail server by. Empty: those of the system."""
    mail_from: str = Field(
        default="",
        validate_default=True,
        max_length=254,
        pattern=worded_pattern(f"^$|{EMAIL_PATTERN}", "an e-mail address such as trainmaster@example.com, in ASCII"),
    )
    """Address that e-mail comes from."""
    mail_domains: str = ""
    """Domains of the addresses that jobs may name for e-mail, with commas between; ``.example.com`` is every one below. Empty: none,
    and e-mail goes to users' own addresses alone."""

    keep_events: Duration = "30d"
    keep_jobs: Duration = "30d"
    """For jobs that have ended, from their end."""
    keep_idempotency: Duration = "7d"
    keep_audit: Duration = "365d"
    keep_changes: Duration = "1d"
    keep_dead_letters: Duration = "30d"
    keep_simulations: Duration = "30d"
    """From their end."""
    keep_revisions: int = Field(default=100, ge=1, le=100_000)
    """Of each declared object. All of them go ``keep_audit`` after the object was removed."""

    log_store: str = ""
    """Where members' output is stored: ``file:///FOLDER`` or ``s3://BUCKET/PREFIX``; empty: in Postgres."""
    output_bytes: int = Field(default=16 * 1024 * 1024, ge=0, le=4 * 1024**3)
    """The most output that is stored of each member: the first and the last half. 0: the last 64 KiB alone."""
    keep_output: Duration = "30d"
    """From its last change; never longer than its job."""
    most_output_bytes: int = Field(default=100 * 1024**3, ge=0)
    """Of all stored output, compressed: the oldest is removed beyond it. 0: no bound."""

    files_store: str = ""
    """Where files and artifacts of jobs are stored: ``file:///FOLDER`` or ``s3://BUCKET/PREFIX``; empty: there are none."""
    files_bytes: int = Field(default=1024**3, ge=1)
    """The most bytes of an upload and of an artifact, as an archive."""
    files_bytes_per_queue: int = Field(default=100 * 1024**3, ge=0)
    """Of all files and artifacts of a queue. 0: no bound."""
    keep_files: Duration = "7d"
    """For uploads, from their last use, once no job, schedule or workflow names them."""

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, value: str) -> str:
        return check_address(value) if value else value

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: str | None) -> str | None:
        return redis_address.check_address(value) if value else value

    @field_validator("oidc_issuer")
    @classmethod
    def _is_issuer(cls, value: str) -> str:
        return check_issuer(value) if value else value

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, value: str) -> str:
        return check_origin(value) if value else value

    @field_validator("oidc_client_ids")
    @classmethod
    def _has_a_client(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not _listed(value):
            raise ValueError("must name the client that the issuer makes tokens for, as there is an OIDC_ISSUER")
        return value

    @field_validator("oidc_user_claims")
    @classmethod
    def _has_a_claim(cls, value: str) -> str:
        if not _listed(value):
            raise ValueError("must name the claim with the name of a user, such as email")
        return value

    @field_validator("usage_labels")
    @classmethod
    def _are_keys_of_labels(cls, value: str) -> str:
        for key in _listed(value):
            _LABEL_KEYS.validate_python(key)
        return value

    @field_validator("usage_half_life")
    @classmethod
    def _half_life_is_sensible(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) < _SHORTEST_HALF_LIFE:
            raise ValueError(f"at least {_SHORTEST_HALF_LIFE:g} seconds")
        return value

    @field_validator("user_usage_half_life")
    @classmethod
    def _half_life_of_users_is_sensible(cls, value: str) -> str:
        if 0 < parse_duration(value) < _SHORTEST_HALF_LIFE:
            raise ValueError(f"0s or at least {_SHORTEST_HALF_LIFE:g} seconds")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _secrets_are_long(cls, value: SecretStr) -> SecretStr:
        if any(len(secret) < _SHORTEST_SECRET for secret in _listed(value.get_secret_value())):
            raise ValueError(f"each secret has at least {_SHORTEST_SECRET} characters")
        return value

    @field_validator("smtp_url")
    @classmethod
    def _is_mail_server(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value():
            read_mail_server(value.get_secret_value())
        return value

    @field_validator("mail_from")
    @classmethod
    def _has_a_sender(cls, value: str, info: ValidationInfo) -> str:
        server = info.data.get("smtp_url")
        if server is not None and server.get_secret_value() and not value:
            raise ValueError("must be the address that e-mail comes from, as there is an SMTP_URL")
        return value

    @field_validator("mail_domains")
    @classmethod
    def _are_domains(cls, value: str) -> str:
        for one in _listed(value):
            if not _DOMAIN.fullmatch(one.lower()):
                raise ValueError(f"{one!r} is no domain; write example.com, or .example.com for every one below")
        return value

    @field_validator("webhook_allow_networks", "trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for item in _listed(value):
            ip_network(item)
        return value

    @field_validator("log_store")
    @classmethod
    def _is_log_store(cls, value: str) -> str:
        return check_url(value) if value else value

    @field_validator("files_store")
    @classmethod
    def _is_file_store(cls, value: str) -> str:
        return check_files_url(value) if value else value

    @field_validator("default_requests")
    @classmethod
    def _are_requests(cls, value: str) -> str:
        read_requests(value)
        return value

    @field_validator("default_memory_limit")
    @classmethod
    def _is_memory(cls, value: str) -> str:
        return read_memory_limit(value)

    @field_validator(*_LEAST_KEPT)
    @classmethod
    def _kept_long_enough(cls, value: str, info: ValidationInfo) -> str:
        least = _LEAST_KEPT[str(info.field_name)]
        if parse_duration(value) < parse_duration(least):
            raise ValueError(f"at least {least}")
        return value

    @property
    def connection_bounds(self) -> ConnectionBounds:
        return ConnectionBounds(
            header_bytes=self.largest_header_bytes,
            header_seconds=self.header_seconds,
            body_seconds=self.body_seconds,
            body_bytes_per_second=self.body_bytes_per_second,
            whole_body_seconds=self.whole_body_seconds,
            unread_answer_seconds=self.unread_answer_seconds,
            keep_alive_seconds=self.keep_alive_seconds,
            most=self.most_connections,
            most_per_address=self.most_connections_per_address,
            trusted_proxies=_listed(self.trusted_proxies),
        )

    @property
    def issuer(self) -> Issuer | None:
        """The OpenID Connect issuer; None where there is none."""
        if not self.oidc_issuer:
            return None
        clients = _listed(self.oidc_client_ids)
        browser_client = self.oidc_browser_client_id or clients[0]
        return Issuer(
            self.oidc_issuer,
            clients,
            _listed(self.oidc_user_claims),
            self.oidc_groups_claim,
            self.oidc_ca_file,
            self.oidc_public_client_secret,
            browser_client=browser_client,
            browser_secret=self.oidc_browser_client_secret.get_secret_value(),
        )

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        return _listed(self.webhook_secret.get_secret_value())

    @property
    def counted_labels(self) -> tuple[str, ...]:
        return _listed(self.usage_labels)

    @property
    def webhook_policy(self) -> AddressPolicy:
        networks = tuple(ip_network(item) for item in _listed(self.webhook_allow_networks))
        return AddressPolicy(self.webhook_allow_http, networks)

    @property
    def sends_mail(self) -> bool:
        return bool(self.smtp_url.get_secret_value())

    @property
    def mail_server(self) -> MailServer | None:
        """The mail server; None where no e-mail is sent."""
        if not self.sends_mail:
            return None
        server = read_mail_server(self.smtp_url.get_secret_value())
        password = server.password or self.smtp_password.get_secret_value()
        may_be_plain = server.may_be_plain or self.smtp_allow_plain
        return server._replace(password=password, may_be_plain=may_be_plain, ca_file=self.smtp_ca_file)

    @property
    def allowed_mail_domains(self) -> tuple[str, ...]:
        return tuple(one.lower() for one in _listed(self.mail_domains))

    @property
    def webhook_persistence(self) -> Persistence:
        return Persistence(
            self.webhook_first_retry_seconds,
            self.webhook_most_retry_seconds,
            self.webhook_attempts,
            parse_duration(self.webhook_give_up),
        )

    @property
    def keep_changes_seconds(self) -> float:
        return parse_duration(self.keep_changes)

    @property
    def webhook_post_seconds(self) -> float:
        """The longest that one post may take as a whole."""
        return 3 * self.webhook_timeout_seconds


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
