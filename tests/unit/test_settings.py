"""Settings of the dispatcher's processes: what is wrong is said with the variable's name in words of users."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.forbidden_words import forbidden
from trainmaster_dispatcher.cli import register
from trainmaster_dispatcher.cli.checks import store_checks
from trainmaster_dispatcher.domain.mail_server import MailServer
from trainmaster_dispatcher.services.settings import Settings, mistyped

ADDRESS = "error: setting DATABASE_URL: must be the address of a Postgres database, such as postgresql://user@host:5432/trainmaster"

app = typer.Typer()
register(app)


@pytest.mark.parametrize("words", ["serve", "scheduler", "worker", "beat", "migrate", "admin first-key", "backup"])
@pytest.mark.parametrize("address", ["foo", "postgresql://u:hidden@h:port/x", "mysql://u:hidden@h/x"])
def test_an_address_of_no_postgres_is_said_without_its_password(
    words: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", address)
    done = CliRunner().invoke(app, words.split())
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (2, ADDRESS)


def test_every_wrong_setting_is_said_in_words_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///x")
    wrong = {
        "KEEP_JOBS": "5x",
        "LEASE_SECONDS": "long",
        "POOL_SIZE": "0",
        "CURRENCY": "euro",
        "WEBHOOK_SECRET": "short",
        "USAGE_LABELS": "team, project name",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(f"TRAINMASTER_{name}", value)
    done = CliRunner().invoke(app, ["scheduler"])
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    lines = [line.removeprefix("error: ") for line in done.stderr.splitlines()]
    assert done.exit_code == 2
    assert sorted(line.partition(":")[0] for line in lines) == sorted(f"setting TRAINMASTER_{name}" for name in wrong)
    assert "setting TRAINMASTER_LEASE_SECONDS: must be a number, not 'long'" in lines
    assert "'5x' is not a duration" in done.stderr
    assert "short" not in done.stderr
    assert not forbidden(done.stderr)
    assert [check.message for check in store_checks()] == lines


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        ({"SMTP_URL": "mail.example.com:hidden"}, "SMTP_URL", "must be smtp://HOST:PORT"),
        ({"SMTP_URL": "smtp://u:hidden@mail.example.com"}, "MAIL_FROM", "must be the address that e-mail comes from"),
        ({"MAIL_FROM": "Trainmaster <hidden@example.com>"}, "MAIL_FROM", "an e-mail address"),
        ({"MAIL_DOMAINS": "example.com, @hidden.com"}, "MAIL_DOMAINS", "is no domain"),
        ({"PUBLIC_URL": "trainmaster.example.com"}, "PUBLIC_URL", "must be an address of https://"),
    ],
)
def test_settings_of_mail_that_cannot_work_are_told(
    given: dict[str, str], name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///x")
    for setting, text in given.items():
        monkeypatch.setenv(f"TRAINMASTER_{setting}", text)
    done = CliRunner().invoke(app, ["worker"])
    assert done.exit_code == 2
    (line,) = [one for one in done.stderr.splitlines() if f"setting TRAINMASTER_{name}: " in one]
    assert said in line
    assert "u:hidden" not in done.stderr


def test_the_mail_server_is_what_the_settings_say() -> None:
    plain = {"database_url": "postgresql:///x", "mail_from": "tm@example.com", "mail_domains": "Example.com, .b.org"}
    settings = Settings.model_validate(plain | {"smtp_url": "smtp://u@mail.example.com", "smtp_password": "p"})
    assert settings.mail_server == MailServer(
        "mail.example.com", 587, is_tls=False, may_be_plain=False, user="u", password="p"
    )
    assert settings.allowed_mail_domains == ("example.com", ".b.org")
    assert "p" not in repr(settings.smtp_password)
    settings = Settings.model_validate(plain | {"smtp_url": "smtp://mail.example.com:25", "smtp_allow_plain": True})
    assert settings.mail_server is not None
    assert settings.mail_server.may_be_plain
    assert Settings.model_validate(plain).mail_server is None
    assert (
        Settings.model_validate(plain | {"public_url": "https://tm.example.com/"}).public_url
        == "https://tm.example.com"
    )


@pytest.mark.parametrize("words", ["serve", "scheduler", "worker", "up --data {folder}"])
@pytest.mark.parametrize("address", ["foo", "http://:hidden@h/0", "redis://:hidden@h:port/0"])
def test_an_address_of_no_redis_is_said_before_anything_starts(
    words: str, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql:///x?host=/nowhere")
    monkeypatch.setenv("REDIS_URL", address)
    done = CliRunner().invoke(app, words.format(folder=tmp_path / "data").split())
    said = "error: setting REDIS_URL: must be the address of a Redis server, such as redis://host:6379/0"
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (2, said)
    assert not (tmp_path / "data").exists()


def test_up_says_a_wrong_setting_before_it_starts_or_makes_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for name, value in {"KEEP_OUTPUT": "soon", "OUTPUT_BYTES": "abc"}.items():
        monkeypatch.setenv(f"TRAINMASTER_{name}", value)
    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert sorted(line.removeprefix("error: ").partition(":")[0] for line in done.stderr.splitlines()) == [
        "setting TRAINMASTER_KEEP_OUTPUT",
        "setting TRAINMASTER_OUTPUT_BYTES",
    ]
    assert not (tmp_path / "data").exists()


def test_a_mistyped_setting_is_told_and_names_of_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    of_others = [
        "TRAINMASTER_URL",
        "TRAINMASTER_API_KEY",
        "TRAINMASTER_DATA",
        "TRAINMASTER_ROLE_SIZE",
        "TRAINMASTER_WORLD_SIZE",
        "TRAINMASTER_PORT",
        "TRAINMASTER_SERVICE_HOST",
        "TRAINMASTER_SERVICE_PORT",
        "TRAINMASTER_PORT_8470_TCP_ADDR",
        "TRAINMASTER_REDIS_SERVICE_HOST",
        "TRAINMASTER_POSTGRESQL_PORT",
    ]
    for name in [*of_others, "TRAINMASTER_KEEP_JOBS"]:
        monkeypatch.setenv(name, "30d")
    assert mistyped() == []
    monkeypatch.setenv("TRAINMASTER_KEP_JOBS", "5d")
    monkeypatch.setenv("TRAINMASTER_LEASE_SECOND", "15")
    sentences = [
        "TRAINMASTER_KEP_JOBS is not a setting and has no effect; did you mean TRAINMASTER_KEEP_JOBS?",
        "TRAINMASTER_LEASE_SECOND is not a setting and has no effect; did you mean TRAINMASTER_LEASE_SECONDS?",
    ]
    assert mistyped() == sentences
    monkeypatch.setenv("DATABASE_URL", "foo")
    assert CliRunner().invoke(app, ["scheduler"]).stderr.splitlines()[:2] == [f"warning: {said}" for said in sentences]
    monkeypatch.setenv("DATABASE_URL", "postgresql:///x?host=/nowhere")
    assert [check.message for check in store_checks()][:2] == sentences
