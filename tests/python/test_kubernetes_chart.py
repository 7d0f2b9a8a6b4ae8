"""The chart: its objects fit Kubernetes' schemas, each other, and the programs that they start."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpupool_common.errors import ConfigError
from gpupool_kubernetes import config as kubernetes_config
from gpupool_kubernetes import names
from gpupool_manager import config as manager_config
from gpupool_server import config as server_config
from helm_chart import CHART, NAMESPACE, Object, by_name, load_all, render, values_of
from kubernetes_schemas import releases, wrong

#: What may be chosen, each at least once.
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "soft": {"server__driver": "soft", "networkPolicies__enabled": False},
    "claim": {"server__claim__enabled": True},
    "all": {
        "config": {"tenants": {"a": "b", "*": "*"}, "resource_names": ["gpupool", "nvidia"]},
        "images": {"registry": "r.example/", "tag": "1.2.3", "pullSecrets": ["one", "two"]},
        "manager__settings": {"history_days": 30},
        "manager__nodeSelector": {"kind": "control"},
        "manager__tolerations": [{"operator": "Exists"}],
        "manager__storage__className": "fast",
        "monitoring": {
            "dashboards": True,
            "labels": {"release": "prometheus"},
            "rules": True,
            "serviceMonitors": True,
        },
        "postgresql__enabled": True,
        "server__nodeSelector": {"pool": "gpu"},
        "server__runtimeClassName": "nvidia",
        "server__settings": {"max_sessions": 9, "watch": {"mode": "log"}},
    },
    "dra": {"dra__enabled": True, "images__pullSecrets": ["one"]},
    "database": {
        "manager__database": {"url": "postgresql://u@db.example/n", "passwordSecret": "db"},
        "server__enabled": False,
    },
}
#: By the container setup of the manager's pod, and by an operator.
MADE_LATER = {"gpupool-pool", "gpupool-tls", "gpupool-join"}
OPERATORS = {"gpupool-postgresql", "db", "kube-root-ca.crt"}

CLUSTERS_OWN = (
    "ClusterRole",
    "ClusterRoleBinding",
    "DeviceClass",
    "MutatingWebhookConfiguration",
    "Namespace",
)
#: Who speaks to the API server all the time.
WITH_TOKENS = (
    "gpupool-webhook",
    "gpupool-controller",
    "gpupool-dra-driver",
    "gpupool-kubelet-plugin",
)
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet")


def claim_version(release: str) -> str:
    minor = int(release.partition(".")[2])
    return "v1" if minor >= 34 else "v1beta2" if minor == 33 else "v1beta1"


@cache
def objects_of(case: str, claims: str = "") -> dict[tuple[str, str], Object]:
    """A case's objects, with claims of a version; not to be changed."""
    changes = dict(CASES[case])
    if claims:
        changes["server__claim__apiVersion"] = f"resource.k8s.io/{claims}"
    return by_name(render(values_of(**changes)))


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Object]]:
    return {name: list(objects_of(name).values()) for name in CASES}


def workloads(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for each in objects:
        if each["kind"] in WORKLOADS:
            yield each["metadata"]["name"], each["spec"]["template"]


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec["containers"], *spec.get("initContainers", ())]


# Schemas ------------------------------------------------------------------------------------


#: What a case has is there from this release on.
SINCE = {"claim": (1, 32), "dra": (1, 34)}


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.mark.parametrize(
    ("case", "release"),
    [
        (case, release)
        for case in CASES
        for release in releases()
        if number(release) >= SINCE.get(case, (0, 0))
    ],
)
def test_every_object_fits_the_schemas(case: str, release: str) -> None:
    objects = objects_of(case, claim_version(release) if case == "claim" else "")
    found = {name: wrong(release, each) for name, each in objects.items()}
    assert len(found) > 20
    assert {name: errors for name, errors in found.items() if errors} == {}


def test_the_schemas_find_what_is_wrong(cases: dict[str, list[Object]]) -> None:
    assert releases()[0] == "1.30" and len(releases()) >= 8
    one = copy.deepcopy(by_name(cases["default"])["Deployment", "gpupool-webhook"])
    one["spec"]["replica"] = 2
    one["spec"]["template"]["spec"]["containers"][0]["image"] = 7
    errors = wrong("1.34", one)
    assert len(errors) == 2 and any("'replica' was unexpected" in error for error in errors)
    unknown = {"apiVersion": "gpupool.io/v1", "kind": "Pod"}
    assert "has no Pod of gpupool.io/v1" in wrong("1.34", unknown)[0]


# Fitting together ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_objects_find_each_other(cases: dict[str, list[Object]], case: str) -> None:
    objects = by_name(cases[case])
    pods = [template["metadata"]["labels"] for _, template in workloads(cases[case])]
    ports = {
        port["name"]
        for _, template in workloads(cases[case])
        for container in containers(template)
        for port in container.get("ports", ())
    }
    for (kind, name), each in objects.items():
        if kind == "Service":
            assert any(each["spec"]["selector"].items() <= labels.items() for labels in pods)
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
        elif kind.endswith("RoleBinding"):
            assert (each["roleRef"]["kind"], each["roleRef"]["name"]) in objects
            for subject in each["subjects"]:
                assert ("ServiceAccount", subject["name"]) in objects
                assert subject["namespace"] == NAMESPACE
        elif kind in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = each["spec"].get("podSelector") or each["spec"]["selector"]
            wanted = selector.get("matchLabels", {})
            assert any(wanted.items() <= labels.items() for labels in pods), name
        elif kind in WORKLOADS:
            own = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= own.items()
        if kind not in CLUSTERS_OWN:
            assert each["metadata"]["namespace"] in (NAMESPACE, f"{NAMESPACE}-claims")


@pytest.mark.parametrize("case", CASES)
def test_what_a_pod_mounts_is_there(cases: dict[str, list[Object]], case: str) -> None:
    objects = by_name(cases[case])
    for name, template in workloads(cases[case]):
        spec = template["spec"]
        account = spec.get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in objects
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in objects, name
            if "secret" in volume:
                assert volume["secret"]["secretName"] in MADE_LATER | OPERATORS, name
        of_claims = each_claim(objects, name)
        for container in containers(template):
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= set(volumes) | of_claims, name


def each_claim(objects: dict[tuple[str, str], Object], name: str) -> set[str]:
    found = objects.get(("StatefulSet", name), {"spec": {}})["spec"]
    return {claim["metadata"]["name"] for claim in found.get("volumeClaimTemplates", ())}


def test_names_follow_the_namespace() -> None:
    text = json.dumps(render(values_of(), namespace="elsewhere"))
    assert NAMESPACE not in text
    assert "system:serviceaccount:elsewhere:gpupool-controller" in text


# Rights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_containers_have_no_more_rights_than_they_need(
    cases: dict[str, list[Object]], case: str
) -> None:
    for name, template in workloads(cases[case]):
        spec = template["spec"]
        is_server = name.startswith("gpupool-server")
        assert "hostNetwork" not in spec and "hostIPC" not in spec
        assert spec.get("hostPID", False) is is_server
        assert spec["automountServiceAccountToken"] is (name in WITH_TOKENS)
        for container in containers(template):
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["capabilities"]["drop"] == ["ALL"]
            assert "privileged" not in rights
            assert container["resources"]["requests"]
            if is_server:
                assert "ALL" not in rights["capabilities"]["add"]
                continue
            pod = {**spec.get("securityContext", {}), **rights}
            if name != "gpupool-kubelet-plugin":  # it writes into folders of root's
                assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0
            assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
            assert rights["allowPrivilegeEscalation"] is False
            assert "add" not in rights["capabilities"]
            assert container["resources"]["limits"]["memory"]


def test_the_server_has_the_capabilities_of_its_unit(cases: dict[str, list[Object]]) -> None:
    unit = (CHART.parents[1] / "server/systemd/gpupool-server.service").read_text()
    line = re.search(r"CapabilityBoundingSet=(.*?)\n[A-Z]", unit, re.S)
    assert line is not None
    known = {word.removeprefix("CAP_") for word in line[1].replace("\\", " ").split()}
    daemons = by_name(cases["soft"])["DaemonSet", "gpupool-server"]["spec"]["template"]
    (container,) = containers(daemons)
    added = set(container["securityContext"]["capabilities"]["add"])
    # NET_ADMIN is for collectives in a network that the host lends: a pod has its own.
    assert added == known - {"NET_ADMIN"}


def test_roles_name_what_they_allow(cases: dict[str, list[Object]]) -> None:
    roles = [each for each in cases["all"] if each["kind"] in ("Role", "ClusterRole")]
    assert len(roles) >= 5
    for role in roles:
        for rule in role["rules"]:
            words = {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
            assert not words & {"*", "bind", "escalate", "impersonate"}
            assert not {"pods/exec", "serviceaccounts/token"} & words
            if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                assert role["kind"] == "Role" and set(rule["resourceNames"]) == MADE_LATER


def test_a_node_reads_no_secret_but_those_of_claims(cases: dict[str, list[Object]]) -> None:
    objects = by_name([each for each in cases["dra"] if each["kind"] != "Namespace"])
    role = objects["Role", "gpupool-kubelet-plugin"]
    claims = f"{NAMESPACE}-claims"
    assert role["metadata"]["namespace"] == claims and role["rules"][0]["verbs"] == ["get"]
    assert objects["RoleBinding", "gpupool-kubelet-plugin"]["metadata"]["namespace"] == claims
    settings = tomllib.loads(objects["ConfigMap", "gpupool-dra"]["data"]["kubernetes.toml"])
    assert settings["namespace"] == claims
    (plugin,) = daemon_sets([objects["DaemonSet", "gpupool-kubelet-plugin"]]).values()
    assert not [volume for volume in plugin["volumes"] if "secret" in volume]


# GPUs ---------------------------------------------------------------------------------------


def daemon_sets(objects: list[Object]) -> dict[str, Object]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] == "DaemonSet"
    }


def test_a_host_is_served_by_who_takes_all_its_gpus(cases: dict[str, list[Object]]) -> None:
    found = daemon_sets(cases["default"])
    assert set(found) == {f"gpupool-server-{count}" for count in (1, 2, 4, 8)}
    for name, spec in found.items():
        count = name.rpartition("-")[2]
        assert spec["nodeSelector"] == {"nvidia.com/gpu.count": count}
        assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": count}
        assert "resourceClaims" not in spec


def test_a_claim_takes_all_gpus_of_a_host(cases: dict[str, list[Object]]) -> None:
    ((name, spec),) = daemon_sets(cases["claim"]).items()
    claim = by_name(cases["claim"])["ResourceClaimTemplate", "gpupool-server"]
    (request,) = claim["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    (used,) = spec["resourceClaims"]
    assert used["resourceClaimTemplateName"] == "gpupool-server"
    assert spec["containers"][0]["resources"]["claims"] == [{"name": used["name"]}]
    assert "nvidia.com/gpu" not in json.dumps(spec["containers"][0]["resources"])


def test_an_upgrade_ends_no_session(cases: dict[str, list[Object]]) -> None:
    for each in cases["default"]:
        if each["kind"] != "DaemonSet":
            continue
        assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        assert (CHART.parents[1] / "docker" / Path(hook[1]).name).is_file()
        assert spec["terminationGracePeriodSeconds"] > int(hook[-1])
        assert "livenessProbe" not in container


# Programs -----------------------------------------------------------------------------------


def config_file(objects: list[Object], name: str, folder: Path) -> Path:
    (text,) = by_name(objects)["ConfigMap", name]["data"].values()
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("case", CASES)
def test_programs_take_their_settings(
    cases: dict[str, list[Object]], case: str, tmp_path: Path
) -> None:
    objects = cases[case]
    manager = manager_config.load_settings(
        config_file(objects, "gpupool-manager", tmp_path), {}, {}
    )
    assert manager.listen == "https://0.0.0.0:7780"
    path = config_file(objects, "gpupool-kubernetes", tmp_path)
    settings = kubernetes_config.load_settings(path, {}, {})
    assert settings.controller_account == f"system:serviceaccount:{NAMESPACE}:gpupool-controller"
    assert settings.image.rpartition("/")[2].startswith("gpupool-kubernetes:")
    if case == "database":
        return
    path = config_file(objects, "gpupool-server", tmp_path)
    flags = {"advertise": "tcp://10.0.0.1:7700", "node_name": "a", "join_token": "/run/join/a"}
    server = server_config.load_settings(path, flags, {})
    assert server.curve and server.data_listen == "tcp://0.0.0.0:40000-40999"
    assert server.max_sessions == (9 if case == "all" else 64)
    assert server.watch.mode == ("log" if case == "all" else "end")


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    objects = render(values_of(server__settings={"max_session": 1}))
    with pytest.raises(ConfigError, match="max_session"):
        server_config.load_settings(config_file(objects, "gpupool-server", tmp_path), {}, {})


def test_ports_are_open_where_programs_listen(
    cases: dict[str, list[Object]], tmp_path: Path
) -> None:
    objects = by_name(cases["default"])
    policy = objects["NetworkPolicy", "gpupool-server"]["spec"]["ingress"][0]["ports"]
    text = config_file(cases["default"], "gpupool-server", tmp_path).read_text()
    settings = tomllib.loads(text)
    front, data = policy
    assert settings["listen"].endswith(f":{front['port']}")
    assert settings["data_listen"].endswith(f":{data['port']}-{data['endPort']}")
    everything = json.dumps(policy) + json.dumps(objects["NetworkPolicy", "gpupool-manager"])
    assert "7780" in everything and "7781" in everything
    peers = objects["NetworkPolicy", "gpupool-server"]["spec"]["ingress"][0]["from"]
    assert peers[0]["podSelector"]["matchExpressions"][0]["key"] == names.MANAGED


def test_the_webhook_is_asked_for_what_it_looks_at(cases: dict[str, list[Object]]) -> None:
    (hook,) = by_name(cases["default"])["MutatingWebhookConfiguration", "gpupool"]["webhooks"]
    source = (CHART.parents[1] / "pool/gpupool_kubernetes/webhook.py").read_text()
    assert f'Route("{hook["clientConfig"]["service"]["path"]}"' in source
    (condition,) = hook["matchConditions"]
    prefixes = re.findall(r"\br\.startsWith\('([^']+)'\)", condition["expression"])
    assert set(prefixes) == {f"{names.GROUP}/"}
    assert all(name.startswith(prefixes[0]) for name in names.RESOURCES)
    for mark in ("a", "l"):
        assert f"{mark}.startsWith('{names.GROUP}/')" in condition["expression"]
    assert hook["failurePolicy"] == "Fail" and hook["sideEffects"] == "None"
    excluded = hook["namespaceSelector"]["matchExpressions"][0]["values"]
    assert excluded == ["kube-system", NAMESPACE]
    (hook,) = by_name(cases["all"])["MutatingWebhookConfiguration", "gpupool"]["webhooks"]
    assert "r.startsWith('nvidia.com/gpu')" in hook["matchConditions"][0]["expression"]
    assert condition["expression"].count("(") == condition["expression"].count(")")


def test_dashboards_and_rules_are_those_of_the_project(cases: dict[str, list[Object]]) -> None:
    objects = by_name(cases["all"])
    folder = CHART.parent / "monitoring"
    dashboards = sorted(folder.glob("dashboards/*.json"))
    assert len(dashboards) >= 2
    for path in dashboards:
        data = objects["ConfigMap", f"gpupool-dashboard-{path.stem}"]["data"]
        assert json.loads(data[path.name]) == json.loads(path.read_text())
    rules = load_all((folder / "rules.yaml").read_text())[0]
    assert objects["PrometheusRule", "gpupool"]["spec"] == rules


def test_the_page_names_what_is_there() -> None:
    root = CHART.parents[1]
    text = (root / "docs/kubernetes.md").read_text(encoding="utf-8")
    install = text.partition("## Install")[2].partition("\n## ")[0]
    values = values_of()
    keys = re.findall(r"--set ([\w.]+)=", install)
    keys += re.findall(r"`((?:server|monitoring|dra)\.[\w.]+)`", install)
    assert len(keys) >= 7
    for key in keys:
        at = values
        for part in key.split("."):
            assert part in at, key
            at = at[part]
    paths = set(re.findall(r"\b(?:kubernetes|docker)/[\w./-]*\w", install))
    assert {"kubernetes/chart", "kubernetes/check-cluster.sh", "docker/Dockerfile"} <= paths
    assert {path for path in paths if not (root / path).exists()} == set()
    commands = install.split("```")[1].strip().splitlines()
    assert len(commands) == 5
    stages = (root / "docker/Dockerfile").read_text(encoding="utf-8")
    images = re.search(r"for each in ([\w ]+);", commands[0])
    assert images is not None
    assert all(re.search(rf"^FROM .* AS {name}$", stages, re.M) for name in images[1].split())
    tag = load_all((CHART / "Chart.yaml").read_text())[0]["appVersion"]
    assert f":{tag} " in commands[0]


@pytest.mark.parametrize("release", releases())
def test_the_definitions_of_our_resources_fit_the_schemas(release: str) -> None:
    found = [load_all(path.read_text())[0] for path in sorted(CHART.glob("crds/*.yaml"))]
    assert {each["metadata"]["name"] for each in found} == {
        f"{plural}.{names.GROUP}" for _, plural in names.CLUSTER_SCOPED
    }
    assert [wrong(release, each) for each in found] == [[]] * len(found)
