"""A recipe as a Containerfile, paragraph by paragraph.

Only the first two paragraphs, which get a Python, depend on the base. What changes rarely stands first, so that a rebuild after
a change of ours takes seconds. Nothing secret is an ARG, since those stay in an image's history: a private certificate
authority and pip's settings come as build secrets, which podman, buildah and docker's BuildKit mount for one step.
"""

from stackmark import __version__
from stackmark.places.container.image.recipes import BASES, TORCH_INDEX, Recipe, options_of
from stackmark.places.place import CACHE_VARIABLES

HOME = "/home/stackmark"
# Any number but 0: OpenShift replaces it, and Kubernetes' runAsNonRoot wants to see a number.
USER_ID = 1001
ENTRYPOINT = '["python3", "-P", "-m", "stackmark.worker"]'
ENVIRONMENT = "/opt/stackmark"
PYTHON = f"{ENVIRONMENT}/bin/python3"
KEPT = f"{ENVIRONMENT}/recipe"
PIP_INSTALL = f"{PYTHON} -m pip install --no-cache-dir --disable-pip-version-check"
CA_SECRET = "--mount=type=secret,id=ca,mode=0444"  # noqa: S105 - the name of a file that apt's own user reads too
TORCH_SEEN = "'import torch; print(torch.__version__, torch.__file__)'"


def containerfile(recipe: Recipe) -> str:
    parts = [
        _head(recipe),
        _packages(recipe),
        _environment(recipe),
        _ourselves(recipe),
        _home(recipe),
        _labels(recipe),
        f"WORKDIR {HOME}\nUSER {USER_ID}\nENTRYPOINT {ENTRYPOINT}\n",
    ]
    return "\n".join(part for part in parts if part)


def _run(steps: list[str], mounts: str = "") -> str:
    """One RUN, a step a line; the first that fails ends it."""
    return f"RUN {mounts + ' ' if mounts else ''}" + "; \\\n    ".join(["set -eu", *steps]) + "\n"


def _head(recipe: Recipe) -> str:
    about = (
        f"# A worker of stackmark {__version__} on {BASES[recipe.base].title}.\n"
        f"# Made by: stackmark image {' '.join(options_of(recipe))}\n"
    )
    if recipe.base_tar:
        return (
            f"{about}# The base is made of {recipe.base_made_of}.\n"
            f"FROM scratch\nADD {recipe.base_tar} /\n"
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nUSER 0\n"
        )
    return (
        f"{about}# The base is pinned by its tag. To pin it by its content too: --build-arg BASE_DIGEST=sha256:…\n"
        f'ARG BASE_IMAGE={recipe.base_image}\nARG BASE_DIGEST="{recipe.base_digest}"\n'
        "FROM ${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}}\nUSER 0\n"
    )


def _packages(recipe: Recipe) -> str:
    base = BASES[recipe.base]
    if base.installer == "none":
        return ""
    names = [*base.packages, *(base.compiler if recipe.torch else ())]
    words = " ".join(name.format(python=recipe.python) for name in names)
    steps = _apt(words) if base.installer == "apt" else _microdnf(words)
    why = ", and a compiler, which torch.compile calls." if recipe.torch else "."
    return (
        f"# The distribution's Python{why}\n"
        "# A private certificate authority comes as the build secret `ca`, and nothing of it stays.\n"
        f"{_run(steps, CA_SECRET)}"
    )


def _apt(words: str) -> list[str]:
    return [
        'with="-o Acquire::Retries=3"',
        'if [ -s /run/secrets/ca ]; then with="$with -o Acquire::https::CAInfo=/run/secrets/ca"; fi',
        "export DEBIAN_FRONTEND=noninteractive",
        "apt-get $with update",
        f"apt-get $with install --yes --no-install-recommends {words}",
        "apt-get clean",
        "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log",
    ]


def _microdnf(words: str) -> list[str]:
    # It looks nowhere but in the system's store; what is added is gone again before the step, and so the layer, ends.
    anchor = "/etc/pki/ca-trust/source/anchors/stackmark-build.crt"
    return [
        f"if [ -s /run/secrets/ca ]; then cp /run/secrets/ca {anchor}; update-ca-trust; fi",
        f"microdnf install --assumeyes --nodocs --setopt=install_weak_deps=0 {words}",
        "microdnf clean all",
        f"if [ -e {anchor} ]; then rm {anchor}; update-ca-trust; fi",
        "rm -rf /var/log/dnf* /var/log/hawkey.log",
    ]


def _environment(recipe: Recipe) -> str:
    """The virtual environment with all that is not ours."""
    arguments, sources, wanted, wheels = "", "", "", ""
    if recipe.torch:
        arguments, wanted = f"ARG TORCH_VERSION={recipe.torch_version}\n", ' "torch==${TORCH_VERSION}"'
        if not recipe.torch_brought and not recipe.offline:
            arguments += f"ARG TORCH_INDEX_URL={TORCH_INDEX}{recipe.build}\n"
            sources += ' --extra-index-url "${TORCH_INDEX_URL}"'
    if recipe.wheels:
        wheels = " --mount=type=bind,source=wheels,target=/run/wheels"
        sources += " --find-links /run/wheels" + (" --no-index" if recipe.offline else "")
    install = (
        f"{PIP_INSTALL} --no-input --progress-bar off --only-binary :all:{sources} \\\n"
        f"      --constraint {KEPT}/constraints.txt --requirement {KEPT}/requirements.txt{wanted}"
    )
    python = BASES[recipe.base].python.format(python=recipe.python)
    steps = [
        "unset PIP_CONSTRAINT",  # NVIDIA's image sets it
        "if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi",
        "if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi",
        f"{python} -m venv{' --system-site-packages' if recipe.keeps_torch else ''} {ENVIRONMENT}",
        install,
    ]
    if recipe.keeps_torch:
        steps += [f'test "$({python} -c {TORCH_SEEN})" = "$({PYTHON} -c {TORCH_SEEN})"']
        why = " The base's torch, numpy and pillow are kept."
    else:
        why = " torch is named with its build, which one index alone has." if recipe.torch else ""
    return (
        f"# The worker's packages, pinned, in an environment of their own.{why}\n"
        "# An index of your own, and its password, come as the build secret `pip.conf`.\n"
        f"COPY requirements.txt constraints.txt {KEPT}/\n{arguments}"
        f"{_run(steps, f'{CA_SECRET} --mount=type=secret,id=pip.conf{wheels}')}"
    )


def _ourselves(recipe: Recipe) -> str:
    torch = ", torch" if recipe.torch or recipe.keeps_torch else ""
    steps = [
        f"{PIP_INSTALL} --no-index --no-deps {KEPT}/{recipe.wheel}",
        *([] if recipe.keeps_torch else [f"{PYTHON} -m pip check"]),  # which NVIDIA's image does not pass by itself
        f'{PYTHON} -P -c "import stackmark.worker.run{torch}"',
    ]
    return (
        "# stackmark, without its dependencies: a worker needs no database, no terminal and no command line.\n"
        f"COPY {recipe.wheel} {KEPT}/\n{_run(steps)}"
    )


def _home(recipe: Recipe) -> str:
    named = f"stackmark:x:{USER_ID}:0:stackmark worker:{HOME}:/usr/sbin/nologin"
    steps = [
        f"mkdir -p {HOME}/.cache",
        f"chgrp -R 0 {HOME}",
        f"chmod -R g=u {HOME}",
        f"grep -q '^[^:]*:[^:]*:{USER_ID}:' /etc/passwd || echo '{named}' >> /etc/passwd",
    ]
    variables = {
        "PATH": f"{ENVIRONMENT}/bin:${{PATH}}",
        "HOME": HOME,
        "USER": "stackmark",  # torch's compiler asks for it, and a UID may have no name
        "XDG_CACHE_HOME": f"{HOME}/.cache",
        **{name: f"{HOME}/.cache/{folder}" for name, folder in CACHE_VARIABLES.items()},
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    if recipe.base in ("cuda", "ngc"):
        # Theirs is `all`, which shows every GPU of a node to a pod that asked for none.
        variables["NVIDIA_VISIBLE_DEVICES"] = "void"
    return (
        "# For any UID, with a name or without: what is written belongs to group 0, which OpenShift gives to each of them.\n"
        f"{_run(steps)}ENV " + " \\\n    ".join(f"{name}={value}" for name, value in variables.items()) + "\n"
    )


def _labels(recipe: Recipe) -> str:
    torch = "${TORCH_VERSION}" if recipe.torch else ("of the base" if recipe.keeps_torch else "none")
    labels = {
        "org.opencontainers.image.title": "stackmark worker",
        "org.opencontainers.image.description": "Runs one workload of stackmark: a task in, events out.",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.revision": recipe.revision,
        "org.opencontainers.image.base.name": recipe.base_made_of if recipe.base_tar else "${BASE_IMAGE}",
        **({} if recipe.base_tar else {"org.opencontainers.image.base.digest": "${BASE_DIGEST}"}),
        "stackmark.version": __version__,
        "stackmark.revision": recipe.revision,
        "stackmark.wheel": f"sha256:{recipe.wheel_sha256}",
        "stackmark.base": recipe.base,
        "stackmark.torch": torch,
    }
    arguments = "" if recipe.base_tar else "ARG BASE_IMAGE\nARG BASE_DIGEST\n"
    return f"{arguments}LABEL " + " \\\n      ".join(f'{name}="{value}"' for name, value in labels.items()) + "\n"
