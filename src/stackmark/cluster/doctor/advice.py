"""Advice on installing what is missing: the vendors' own commands, by vendor and by the node's distribution.

A line that begins with `$ ` is typed: on the node, or where kubectl and helm are. Versions are left out where the vendor's page
lets one leave them out, so that the newest is taken. Where each comes from stands next to it; all were read in November 2026.
"""

from collections.abc import Sequence

Lines = tuple[str, ...]

# https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (open kernel modules, from NVIDIA's network repository)
NVIDIA_DRIVER_PAGE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_NVIDIA_DRIVER = {
    "debian": ("$ sudo apt-get update && sudo apt-get install -y nvidia-open",),
    "redhat": ("$ sudo dnf install -y nvidia-open",),
    "suse": ("$ sudo zypper install -y nvidia-open",),
}
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
_NVIDIA_REPOSITORY = "https://nvidia.github.io/libnvidia-container"
_NVIDIA_TOOLKIT = {
    "debian": (
        f"$ curl -fsSL {_NVIDIA_REPOSITORY}/gpgkey | sudo gpg --dearmor -o"
        " /usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
        f"$ curl -s -L {_NVIDIA_REPOSITORY}/stable/deb/nvidia-container-toolkit.list"
        " | sed 's#deb https://#deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] https://#g'"
        " | sudo tee /etc/apt/sources.list.d/nvidia-container-toolkit.list",
        "$ sudo apt-get update && sudo apt-get install -y nvidia-container-toolkit",
    ),
    "redhat": (
        f"$ curl -s -L {_NVIDIA_REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo"
        " | sudo tee /etc/yum.repos.d/nvidia-container-toolkit.repo",
        "$ sudo dnf install -y nvidia-container-toolkit",
    ),
    "suse": (
        f"$ sudo zypper ar {_NVIDIA_REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo",
        "$ sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit",
    ),
}
# https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html
NVIDIA_OPERATOR: Lines = (
    "$ helm repo add nvidia https://helm.ngc.nvidia.com/nvidia && helm repo update",
    "$ helm install --wait --generate-name -n gpu-operator --create-namespace nvidia/gpu-operator",
)
# https://github.com/NVIDIA/k8s-device-plugin, "Deployment via helm"; with GFD, for the labels that this doctor reads
NVIDIA_PLUGIN: Lines = (
    "$ helm repo add nvdp https://nvidia.github.io/k8s-device-plugin && helm repo update",
    "$ helm upgrade -i nvdp nvdp/nvidia-device-plugin --namespace nvidia-device-plugin --create-namespace --set gfd.enabled=true",
)
# https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/: OperatorHub, first NFD, then the GPU operator
NVIDIA_OPENSHIFT: Lines = (
    "on OpenShift, install from OperatorHub: Node Feature Discovery with a NodeFeatureDiscovery, then the NVIDIA GPU Operator"
    " with a ClusterPolicy; they install driver, toolkit and device plugin",
    "$ oc get pods -n openshift-nfd; oc get pods -n nvidia-gpu-operator",
)
# https://instinct.docs.amd.com/projects/gpu-operator/en/latest/installation/kubernetes-helm.html (cert-manager first)
AMD_OPERATOR: Lines = (
    "$ helm repo add jetstack https://charts.jetstack.io --force-update",
    "$ helm install cert-manager jetstack/cert-manager --namespace cert-manager --create-namespace --set crds.enabled=true",
    "$ helm repo add rocm https://rocm.github.io/gpu-operator && helm repo update",
    "$ helm install amd-gpu-operator rocm/gpu-operator-charts --namespace kube-amd-gpu --create-namespace",
)
# https://instinct.docs.amd.com/projects/k8s-device-plugin/en/latest/
AMD_PLUGIN: Lines = (
    "$ kubectl create -f https://raw.githubusercontent.com/ROCm/k8s-device-plugin/master/k8s-ds-amdgpu-dp.yaml",
    "$ kubectl create -f https://raw.githubusercontent.com/ROCm/k8s-device-plugin/master/k8s-ds-amdgpu-labeller.yaml",
)
# https://instinct.docs.amd.com/projects/gpu-operator/en/latest/installation/openshift-olm.html
AMD_OPENSHIFT: Lines = (
    "on OpenShift, install from OperatorHub: Node Feature Discovery, Kernel Module Management, then the AMD GPU Operator with a"
    " DeviceConfig",
)
# https://rocm.docs.amd.com/projects/install-on-linux/en/latest/ (amdgpu-install lays down the repository and the module)
_AMD_DRIVER = {
    "debian": ("$ sudo apt-get install -y amdgpu-dkms",),
    "redhat": ("$ sudo dnf install -y amdgpu-dkms",),
    "suse": ("$ sudo zypper install -y amdgpu-dkms",),
}
AMD_DRIVER_PAGE = "https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/"
# container-selinux' own switch (container_selinux(8)); what was denied stands in the audit log.
SELINUX: Lines = (
    "with SELinux enforcing, the node's audit log shows denied devices; this allows devices in containers:",
    "$ sudo ausearch -m avc -ts recent | grep -E 'nvidia|kfd|dri'",
    "$ sudo setsebool -P container_use_devices on",
)


def family(os_image: str) -> str:
    """Return the family of a node's distribution, by what the kubelet reports: `Red Hat Enterprise Linux CoreOS 418…`."""
    name = os_image.lower()
    families = {
        "debian": ("debian", "ubuntu"),
        "redhat": ("red hat", "rhel", "centos", "rocky", "alma", "fedora", "oracle linux", "amazon linux"),
        "suse": ("suse", "sles"),
    }
    return next((key for key, words in families.items() if any(word in name for word in words)), "other")


def driver(vendor: str, os_image: str, openshift: bool) -> Lines:
    if vendor == "amd":
        own = _AMD_DRIVER.get(family(os_image), ())
        return _either(own, AMD_OPENSHIFT if openshift else AMD_OPERATOR, AMD_DRIVER_PAGE, openshift)
    own = _NVIDIA_DRIVER.get(family(os_image), ())
    return _either(own, NVIDIA_OPENSHIFT if openshift else NVIDIA_OPERATOR, NVIDIA_DRIVER_PAGE, openshift)


def runtime(vendor: str, os_image: str, engine: str, openshift: bool) -> Lines:
    """Return advice for a runtime. `engine` is the kubelet's: `containerd://1.7.27`, `cri-o://1.31.3`."""
    linux = SELINUX if family(os_image) == "redhat" else ()
    if vendor == "amd":
        # AMD's device plugin hands in /dev/kfd and /dev/dri itself: no toolkit is needed.
        return ("AMD's device plugin passes in /dev/kfd and /dev/dri/renderD*: look at its log", *linux)
    if openshift:
        return (*NVIDIA_OPENSHIFT, *linux)
    # The toolkit's name for it is its service's, too.
    kind = "crio" if engine.startswith("cri-o") else "containerd"
    return (
        "on the node, install NVIDIA's container toolkit (the GPU operator includes it):",
        *_NVIDIA_TOOLKIT.get(family(os_image), ()),
        f"$ sudo nvidia-ctk runtime configure --runtime={kind} --set-as-default && sudo systemctl restart {kind}",
        "or use CDI, without a separate runtime (since 1.18 the toolkit writes it by itself):",
        "$ sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml && nvidia-ctk cdi list",
        *linux,
    )


def plugin(vendor: str, openshift: bool) -> Lines:
    if vendor == "amd":
        return (
            AMD_OPENSHIFT
            if openshift
            else ("install AMD's device plugin only:", *AMD_PLUGIN, "or its operator:", *AMD_OPERATOR)
        )
    if openshift:
        return NVIDIA_OPENSHIFT
    return (
        "with driver and toolkit on the nodes, install the device plugin only:", *NVIDIA_PLUGIN,
        "or the GPU operator, which installs all of them:", *NVIDIA_OPERATOR,
    )  # fmt: skip


def role(kubectl: str, namespace: str, rights: Sequence[tuple[str, str]], user: str) -> Lines:
    """Return the commands that create a Role for the missing rights (verb, resource)."""
    verbs = ",".join(dict.fromkeys(verb for verb, _ in rights))
    resources = ",".join(dict.fromkeys(resource for _, resource in rights))
    return (
        f"$ {kubectl} -n {namespace} create role stackmark --verb={verbs} --resource={resources}",
        f"$ {kubectl} -n {namespace} create rolebinding stackmark --role=stackmark --user={user or 'USER'}",
    )


def _either(own: Lines, operator: Lines, page: str, openshift: bool) -> Lines:
    if openshift:
        return operator
    return ("on the node, install it from the vendor's repository, then reboot:", *own, f"the vendor's page: {page}",
            "or let the operator install it:", *operator)  # fmt: skip
