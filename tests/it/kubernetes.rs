//! The manifests for Kubernetes: its schemas accept them, they fit together, and the gateway accepts their configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Client, Gateway, run};
use crate::metrics::{documented, promtool};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/packaging/kubernetes")
}

/// The validator is no part of the gateway.
fn validate(files: &[PathBuf]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", root.join("target/kubernetes-validate")).arg(root.join("tests/it/manifests.py"));
    python.args(files).output().unwrap()
}

#[track_caller]
fn objects() -> Vec<Value> {
    objects_of(folder())
}

#[track_caller]
fn objects_of(folder: PathBuf) -> Vec<Value> {
    let output = validate(&[folder]);
    assert!(
        output.status.success(),
        "scripts/test --all installs the validator: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects.iter().filter(|object| object["spec"]["template"]["spec"]["containers"].is_array())
}

/// The configuration in the ConfigMap, with an existing token file and with `changes` to other values.
#[track_caller]
fn configuration(folder: &Path, objects: &[Value], changes: &[(&str, &str)]) -> String {
    let token = folder.join("token");
    std::fs::write(&token, "token-of-these-tests").unwrap();
    let text = object(objects, "ConfigMap", "gateway")["data"]["gateway.toml"].as_str().unwrap();
    [("/etc/gateway-admin/token", token.to_str().unwrap())].iter().chain(changes).fold(
        text.to_owned(),
        |text, (old, new)| {
            assert_eq!(text.matches(old).count(), 1, "{old}");
            text.replace(old, new)
        },
    )
}

/// The configuration with every default.
#[track_caller]
fn settings(objects: &[Value]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, configuration(folder.path(), objects, &[])).unwrap();
    let output = run(&["check", "--json", file.to_str().unwrap()]);
    // No warnings, either.
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn seconds(value: &Value) -> f64 {
    let text = value.as_str().unwrap();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_alphabetic()).unwrap());
    let unit = BTreeMap::from([("ms", 0.001), ("s", 1.0), ("m", 60.0)])[unit];
    number.parse::<f64>().unwrap() * unit
}

#[test]
#[ignore = "needs Python"]
fn the_validator_finds_what_is_wrong() {
    let folder_of_copy = tempfile::tempdir().unwrap();
    let (good, copy) = (folder().join("autoscaling.yaml"), folder_of_copy.path().join("copy.yaml"));
    let text = std::fs::read_to_string(good).unwrap();
    for (old, new, expected) in [
        ("minReplicas: 2", "minReplicas: 2\n  leastReplicas: 2", "'leastReplicas' was unexpected"),
        ("maxReplicas: 10", "maxReplicas: ten", "'ten' is not of type 'integer'"),
        ("type: AverageValue, ", "", "'type' is a required property"),
    ] {
        assert!(text.contains(old), "{old}");
        std::fs::write(&copy, text.replace(old, new)).unwrap();
        let output = validate(std::slice::from_ref(&copy));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}

#[test]
#[ignore = "needs Python"]
fn all_objects_are_valid_and_applied() {
    let objects = objects();
    for (kind, name) in [
        ("ConfigMap", "gateway"),
        ("Deployment", "gateway"),
        ("Service", "gateway"),
        ("PodDisruptionBudget", "gateway"),
        ("HorizontalPodAutoscaler", "gateway"),
        ("NetworkPolicy", "gateway"),
        ("StatefulSet", "memcached"),
        ("Service", "memcached"),
        ("PodDisruptionBudget", "memcached"),
        ("NetworkPolicy", "memcached"),
    ] {
        object(&objects, kind, name);
    }
    let kustomization = std::fs::read_to_string(folder().join("kustomization.yaml")).unwrap();
    let here = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    for file in here.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()) {
        let is_listed = kustomization.contains(&format!("\n  - {file}\n"));
        assert!(is_listed || file == "kustomization.yaml", "the kustomization lacks {file}");
    }
}

#[test]
#[ignore = "needs Python"]
fn one_file_has_all_objects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("scripts/package")).arg("manifests").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = validate(&[root.join("target/package/kubernetes.yaml")]);
    let packaged: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut objects = objects();
    assert!(packaged.iter().all(|object| objects.contains(object)));
    objects.retain(|object| !packaged.contains(object));
    assert_eq!(objects, Vec::<Value>::new());
}

#[test]
#[ignore = "needs Python"]
fn the_configuration_fits_the_pods() {
    let objects = objects();
    let settings = settings(&objects);
    let pod = &object(&objects, "Deployment", "gateway")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
    };
    let listen = settings["server"]["listen"].to_string();
    assert!(listen.contains(&format!(":{}\"", port("http"))), "{listen}");
    assert!(settings["admin"]["listen"].as_str().unwrap().ends_with(&format!(":{}", port("admin"))));
    assert_eq!(settings["server"]["workers"].to_string(), container["resources"]["requests"]["cpu"].as_str().unwrap());
    // SIGKILL comes only after the longest drain and the last writes.
    let drain = seconds(&settings["server"]["drain_delay"]) + seconds(&settings["server"]["drain_timeout"]);
    let grace = pod["terminationGracePeriodSeconds"].as_f64().unwrap();
    assert!(drain + 25.0 < grace, "{drain} seconds of draining, and {grace} until SIGKILL");
    // The readiness probe fails before the listeners close.
    let probe = &container["readinessProbe"];
    let noticed = probe["periodSeconds"].as_f64().unwrap() * probe["failureThreshold"].as_f64().unwrap();
    assert!(noticed < seconds(&settings["server"]["drain_delay"]));

    the_servers_of_the_store_are_those_of("memcached", &objects);
}

#[track_caller]
fn the_servers_of_the_store_are_those_of(software: &str, objects: &[Value]) {
    let store = &settings(objects)["store"];
    let servers = &object(objects, "StatefulSet", software)["spec"];
    let service = object(objects, "Service", servers["serviceName"].as_str().unwrap());
    let (replicas, port) = (servers["replicas"].as_u64().unwrap(), &service["spec"]["ports"][0]["port"]);
    let servers = (0..replicas).map(|number| format!("{software}-{number}.{software}:{port}"));
    assert_eq!((&store["type"], &store["servers"]), (&software.into(), &servers.collect::<Value>()));
}

#[test]
#[ignore = "needs Python"]
fn there_is_a_variant_with_valkey() {
    let objects = objects_of(folder().join("valkey"));
    the_servers_of_the_store_are_those_of("valkey", &objects);
    for kind in ["PodDisruptionBudget", "NetworkPolicy"] {
        object(&objects, kind, "valkey");
    }
    assert!(objects.iter().all(|object| object["metadata"]["name"] != "memcached"));
    assert_eq!(objects.len(), self::objects().len());
}

#[test]
#[ignore = "needs Python"]
fn probes_are_answered_without_the_token() {
    let objects = objects();
    let folder = tempfile::tempdir().unwrap();
    let container = &object(&objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0];
    let changes =
        [("[::]:8080", "127.0.0.1:0"), ("[::]:9901", "0.0.0.0:0"), ("\"sampled\"", "\"sampled\"\nformat = \"json\"")];
    // Neither Memcached nor the application exists, and their names are not found.
    let gateway = Gateway::from_text(&configuration(folder.path(), &objects, &changes));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[probe]["httpGet"];
        assert_eq!(probe["port"], "admin");
        assert_eq!(gateway.admin(probe["path"].as_str().unwrap()).status, 200, "{probe}");
    }
    assert_eq!(gateway.admin("/metrics").status, 401);
}

#[test]
#[ignore = "needs Python"]
fn there_is_a_variant_that_only_decides() {
    let objects = objects_of(folder().join("decisions"));
    let service = &object(&objects, "Service", "gateway")["spec"]["ports"][0];
    let port = &object(&objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]["ports"][0];
    assert_eq!((&service["targetPort"], &service["port"]), (&port["name"], &port["containerPort"]));
    let policy = &object(&objects, "NetworkPolicy", "gateway")["spec"]["ingress"][0];
    assert_eq!(policy["ports"], serde_json::json!([{ "port": port["name"] }]));
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("[::]:{}", port["containerPort"]);
    let changes = [
        (listen.as_str(), "127.0.0.1:0"),
        ("[::]:9901", "0.0.0.0:0"),
        ("\"sampled\"", "\"sampled\"\nformat = \"json\""),
    ];
    let gateway = Gateway::from_text(&configuration(folder.path(), &objects, &changes));
    assert_eq!(gateway.admin("/readyz").status, 200);
    assert_eq!(Client::connect(gateway.decisions()).get("/").status, 400, "it names no request");
}

#[test]
#[ignore = "needs Python"]
fn selectors_find_what_they_name() {
    [objects(), objects_of(folder().join("valkey"))].iter().for_each(|objects| selectors_find(objects));
}

fn selectors_find(objects: &[Value]) {
    let labels = |workload: &Value| workload["spec"]["template"]["metadata"]["labels"].clone();
    let is_selected = |selector: &Value, labels: &Value| {
        selector.as_object().unwrap().iter().all(|(name, value)| labels[name] == *value)
    };
    for object in objects {
        let (kind, spec) = (object["kind"].as_str().unwrap(), &object["spec"]);
        let selector = match kind {
            "Service" => &spec["selector"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            "Deployment" | "StatefulSet" | "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
            _ => continue,
        };
        let selected: Vec<_> = workloads(objects).filter(|workload| is_selected(selector, &labels(workload))).collect();
        let [workload] = selected[..] else { panic!("{kind} selects {} workloads", selected.len()) };
        // Ports have the same names as in the pods.
        let named = workload["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
        let services = spec["ports"].as_array().into_iter().flatten().map(|port| &port["targetPort"]);
        let rules = spec["ingress"].as_array().into_iter().flatten();
        let policies = rules.flat_map(|rule| rule["ports"].as_array().unwrap()).map(|port| &port["port"]);
        for port in services.chain(policies) {
            assert!(named.iter().any(|named| named["name"] == *port), "{kind}: no port {port}");
        }
    }
    let scaled = &object(objects, "HorizontalPodAutoscaler", "gateway")["spec"]["scaleTargetRef"];
    object(objects, scaled["kind"].as_str().unwrap(), scaled["name"].as_str().unwrap());
}

/// The requirements of "restricted", the strictest of the Pod Security Standards
/// (<https://kubernetes.io/docs/concepts/security/pod-security-standards/>), and a read-only root.
#[test]
#[ignore = "needs Python"]
fn pods_have_no_privileges() {
    let objects = [objects(), objects_of(folder().join("valkey"))];
    assert!(objects.iter().all(|objects| workloads(objects).count() == 2));
    for workload in objects.iter().flat_map(|objects| workloads(objects)) {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod["securityContext"]["runAsUser"].as_u64().unwrap() > 0);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(pod["automountServiceAccountToken"], false);
        for container in pod["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(
                (&context["allowPrivilegeEscalation"], &context["readOnlyRootFilesystem"]),
                (&false.into(), &true.into())
            );
            assert_eq!(context["capabilities"], serde_json::json!({ "drop": ["ALL"] }));
        }
    }
}

#[test]
#[ignore = "needs Python"]
fn the_metric_of_the_autoscaler_exists() {
    let values = std::fs::read_to_string(folder().join("monitoring/prometheus-adapter-values.yaml")).unwrap();
    let value = |key: &str| {
        let found: Vec<_> =
            values.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key)).collect();
        assert_eq!(found.len(), 1, "{key}");
        found[0].trim_matches('\'').to_owned()
    };
    let objects = objects();
    let metrics = object(&objects, "HorizontalPodAutoscaler", "gateway")["spec"]["metrics"].as_array().unwrap();
    let asked =
        metrics.iter().find(|metric| metric["type"] == "Pods").unwrap()["pods"]["metric"]["name"].as_str().unwrap();
    assert_eq!(value("name: "), format!("{{as: {asked}}}"));
    let series = value("seriesQuery: ");
    let metric = series.split('{').next().unwrap();
    assert_eq!(documented()[metric].kind, "counter");
    let query = value("metricsQuery: ");
    let query =
        query.replace("<<.Series>>", metric).replace("<<.LabelMatchers>>", "pod=\"a\"").replace("<<.GroupBy>>", "pod");
    for query in [series.as_str(), &query] {
        let rules = format!("groups:\n- name: adapter\n  rules:\n  - record: pods\n    expr: '{query}'\n");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("adapter.yml");
        std::fs::write(&file, rules).unwrap();
        let output = promtool(&["check", "rules", file.to_str().unwrap()], "");
        assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
