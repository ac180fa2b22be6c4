"""A secret that was typed, or given by name, reaches the worker and nothing that is stored or shown."""

import pytest

from stackmark.secrets_masking import looks_secret, masked_arm, masked_command


@pytest.mark.parametrize(
    "name",
    ["TOKEN", "HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "API_KEY2", "apiKey", "DB_PASS", "HTTP_AUTH",
     "GOOGLE_CREDENTIALS"],
)  # fmt: skip
def test_a_name_that_says_secret_is_known_as_one(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR", "KEYBOARD", "PATH", "PWD", "COMPASS"]
)
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("container,env=TOKEN=a=b,shm=1g", "container,env=TOKEN=***,shm=1g"),
        ("container,env=TOKEN=a,b,shm=1g", "container,env=TOKEN=***,shm=1g"),
        ("container, env = TOKEN=a", "container, env =TOKEN=***"),
        ("container,env=TOKEN", "container,env=TOKEN"),
        ("container,env=SPEED=9,env=A_KEY=1", "container,env=SPEED=9,env=A_KEY=***"),
    ],
)
def test_an_arm_is_shown_without_the_values_of_secrets(typed: str, shown: str) -> None:
    assert masked_arm(typed) == shown


@pytest.mark.parametrize("words", [["--env", "TOKEN=hush"], ["--env=TOKEN=hush"], ["--on", "container,env=TOKEN=hush"],
                                   ["--arm=container,env=TOKEN=hu,sh"]])  # fmt: skip
def test_a_command_line_is_shown_without_the_values_of_secrets(words: list[str]) -> None:
    shown = masked_command(["stackmark", "run", "train/trivial", *words, "--seconds", "1"])
    assert "hush" not in shown
    assert "sh" not in shown.replace("***", "")
    assert "TOKEN=***" in shown
    assert shown.endswith("--seconds 1")
