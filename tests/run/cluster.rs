//! `make cluster`: one machine that is a whole Kubernetes cluster, from nothing to its first upgrades, with what happened written down.
//!
//! ```text
//! images, secrets, config ──► boot ──► bootstrap ──► kubeconfig ──► network, Deployments
//!   ──► the OS is replaced while a client holds a connection ──► Kubernetes is upgraded ──► a broken one is gone back from
//! ```

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use instar_qemu::{Accel, PortLease, control, lease_port};
use instar_tests::{
    Held, HeldConnection, ImageUnderTest, Kubectl, Registry as Filled, Scratch, cluster_section,
    guest_program, kubernetes_version, push_base, push_control_plane, push_extension,
    push_extension_with, push_greeter, push_pause,
};
use serde_json::{Value, json};

use crate::background::Registry;
use crate::{COMMAND_LINE, Place, VERSION_AFTER, clear, greet, quiet, step};

/// The machine's name, which is the node's.
const NAME: &str = "cluster";
/// Ports of the machine: of a Deployment that answers, of one that a connection is held to, of the API server.
const ANSWERER_PORT: u16 = 8080;
const BEAT_PORT: u16 = 8081;
const API_SERVER_PORT: u16 = 6443;
const MEMORY_MIB: &str = "2048";
/// The name of the next version. Its programs are the same: what changes is the extension, and with it every static pod.
const NEXT: &str = "v1.36.99";
/// The time within which a node has to be ready with another extension.
const READY_WITHIN: &str = "90s";
/// Timeout for each thing that is waited for, on a slow and busy host.
const PATIENCE: Duration = Duration::from_secs(900);
const PAUSE: Duration = Duration::from_secs(1);

const NETWORK: &str = include_str!("../kubernetes/manifests/network.yaml");
const PODS: &str = include_str!("../kubernetes/manifests/own_cluster.yaml");

/// The host's ports that lead to the machine.
struct Ports {
    api: PortLease,
    api_server: PortLease,
    answerer: PortLease,
    beat: PortLease,
}

impl Ports {
    fn lease() -> Result<Self> {
        Ok(Self {
            api: lease_port()?,
            api_server: lease_port()?,
            answerer: lease_port()?,
            beat: lease_port()?,
        })
    }

    fn address(port: &PortLease) -> String {
        format!("127.0.0.1:{}", port.port())
    }
}

/// The cluster with its user's tools.
struct Cluster<'a> {
    place: &'a Place,
    registry: Registry,
    ports: Ports,
    begun: Instant,
}

/// Makes a cluster, and upgrades it.
pub(crate) async fn demonstrate(place: &Place) -> Result<()> {
    let begun = Instant::now();
    clear(place)?;
    let registry = step("images, in a registry of this host", || {
        fill_registry(place)
    })?;
    let cluster = Cluster {
        place,
        registry,
        ports: Ports::lease()?,
        begun,
    };
    step("secrets and machine config", || cluster.make_config())?;
    step("boot", || cluster.boot())?;
    let kubectl = cluster.begin()?;
    let ready = cluster.give_it_pods(&kubectl).await?;
    cluster.wait("the node has proven its extensions", || cluster.proven(1))?;
    let os = cluster.upgrade_os(&kubectl)?;
    let kubernetes = cluster.upgrade_kubernetes(&kubectl)?;
    let broken = cluster.break_kubernetes(&kubectl)?;
    let greeter = Ports::address(&cluster.ports.answerer);
    let greeting = greet(&greeter).await?;
    println!("the Deployment still answers: {greeting}");
    let result = json!({
        "kubeconfig": cluster.kubeconfig(),
        "client_config": place.file("talosconfig"),
        "seconds_until_ready": ready,
        "os_upgrade": os,
        "kubernetes_upgrade": kubernetes,
        "broken_kubernetes": broken,
        "seconds_total": cluster.seconds(),
    });
    std::fs::write(place.file("result.json"), format!("{result:#}\n"))
        .context("cannot write result.json")?;
    cluster.say_next_steps(&greeter)
}

/// Puts all images into the storage of a registry, and starts it.
fn fill_registry(place: &Place) -> Result<Registry> {
    let scratch = Scratch::at(&place.folder)?;
    let filled = Filled::start(&scratch)?;
    push_base(&filled, &ImageUnderTest::first()?)?;
    filled.push_installer_without_kernel(&ImageUnderTest::second()?)?;
    for name in ["containerd", "kubernetes"] {
        push_extension(&filled, name)?;
    }
    let version = format!("{NEXT}\n");
    let next = ("usr/local/share/kubernetes-version", version.as_bytes());
    push_extension_with(&filled, "kubernetes", "v2", &[next])?;
    // A kubelet that takes its first option for a port, and ends.
    let program = guest_program("greeter")?;
    let broken = [("usr/bin/kubelet", program.as_slice()), next];
    push_extension_with(&filled, "kubernetes", "broken", &broken)?;
    push_control_plane(&filled, &[&kubernetes_version()?, NEXT])?;
    push_pause(&filled)?;
    push_greeter(&filled)?;
    drop(filled);
    Registry::start(&place.folder)
}

impl Cluster<'_> {
    fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    fn say(&self, what: &str) {
        println!("  {what} ({} s since the start)", self.seconds());
    }

    fn kubeconfig(&self) -> PathBuf {
        self.place.file("kubeconfig")
    }

    fn instarctl(&self) -> Result<Command> {
        let mut command = Command::new(self.place.program("instarctl")?);
        command
            .arg("--talosconfig")
            .arg(self.place.file("talosconfig"));
        Ok(command)
    }

    /// Makes the secrets and the config with the first extension.
    fn make_config(&self) -> Result<()> {
        let secrets = self.place.file("secrets.yaml");
        let mut generate = Command::new(self.place.program("instarctl")?);
        generate
            .args(["gen", "secrets", "--output-file"])
            .arg(&secrets);
        quiet(&mut generate)?;
        let mut generate = Command::new(self.place.program("instarctl")?);
        generate.args(["gen", "config", NAME, &Ports::address(&self.ports.api)]);
        generate.args(["--install-disk", "/dev/vda", "--hostname", NAME]);
        generate.arg("--with-secrets").arg(&secrets);
        quiet(generate.arg("--output-dir").arg(&self.place.folder))?;
        self.write_config("v1").map(drop)
    }

    /// Writes the config with this image of the extension `kubernetes`; returns its path.
    fn write_config(&self, kubernetes: &str) -> Result<PathBuf> {
        let generated = std::fs::read_to_string(self.place.file("machine.yaml"))?;
        let secrets = std::fs::read_to_string(self.place.file("secrets.yaml"))?;
        let endpoint = format!("https://{}", Ports::address(&self.ports.api_server));
        let section = cluster_section(&secrets, &endpoint)?;
        // The section belongs to the first document.
        let (main, others) = generated
            .split_once("\n---\n")
            .context("the config has no second document")?;
        let host = self.registry.host_for_guest();
        let mirror = |name: &str| {
            format!(
                "---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {name}\nendpoints:\n  - url: http://{host}\nskipFallback: true\n"
            )
        };
        let extension = |name: &str, tag: &str| {
            let image = self
                .registry
                .name_for_guest(&format!("extensions/{name}:{tag}"));
            format!(
                "---\napiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: {name}\nimage: {image}\n"
            )
        };
        let base = self.registry.name_for_guest("instar/kubernetes:v0.1.0");
        let ours = format!(
            "---\napiVersion: instar.dev/v1alpha1\nkind: KubernetesConfig\nimage: {base}\nreadyWithin: {READY_WITHIN}\n"
        );
        let config = [
            format!("{main}\n{section}---\n{}\n", others.trim_end()),
            mirror(&host),
            mirror("registry.k8s.io"),
            ours,
            extension("containerd", "v1"),
            extension("kubernetes", kubernetes),
        ];
        let path = self.place.file("cluster.yaml");
        std::fs::write(&path, config.concat())?;
        Ok(path)
    }

    fn boot(&self) -> Result<()> {
        let qemu = self.place.program("instar-qemu")?;
        let disk = self.place.file("disk.img");
        quiet(
            Command::new(&qemu)
                .arg("blank")
                .arg(&disk)
                .args(["--size", "6G"]),
        )?;
        let image = self.place.image(crate::VERSION_BEFORE);
        let mut start = Command::new(&qemu);
        start.arg("start").arg("--dir").arg(self.place.node());
        start.arg("--kernel").arg(image.join("vmlinuz"));
        start.arg("--initrd").arg(image.join("initramfs"));
        start.arg("--drive").arg(&disk);
        start.args(["--memory", MEMORY_MIB, "--append", COMMAND_LINE]);
        let config = self.place.file("cluster.yaml");
        start.arg("--fw-cfg");
        start.arg(format!("opt/dev.instar/config={}", config.display()));
        for (guest, host) in [
            (instar_api::PORT, &self.ports.api),
            (API_SERVER_PORT, &self.ports.api_server),
            (ANSWERER_PORT, &self.ports.answerer),
            (BEAT_PORT, &self.ports.beat),
        ] {
            start
                .arg("--forward")
                .arg(format!("{guest}:{}", host.port()));
        }
        if Accel::detect()? == Accel::Tcg {
            start.arg("--counted");
        }
        quiet(&mut start)
    }

    /// Waits until something is so; fails at once when the machine is gone.
    fn wait<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            let error = match ask() {
                Ok(found) => {
                    self.say(what);
                    return Ok(found);
                }
                Err(error) => error,
            };
            let runs = control::is_running(&self.place.node());
            ensure!(runs, "the machine ended before: {what}");
            if Instant::now() >= until {
                return Err(error).context(format!("waited {} s for: {what}", PATIENCE.as_secs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Begins the cluster; returns its administrator's kubectl.
    fn begin(&self) -> Result<Kubectl> {
        println!("instarctl bootstrap, instarctl kubeconfig");
        self.wait("the cluster begins", || {
            quiet(self.instarctl()?.arg("bootstrap"))
        })?;
        let file = self.kubeconfig();
        quiet(self.instarctl()?.arg("kubeconfig").arg(&file))?;
        let scratch = Scratch::at(&self.place.file("kubectl"))?;
        let kubectl = Kubectl::of(&file, scratch)?;
        self.wait("the API server knows its node", || {
            kubectl.get(&["node", NAME])
        })?;
        Ok(kubectl)
    }

    /// Gives it a network of pods and Deployments; returns the seconds until all are ready.
    async fn give_it_pods(&self, kubectl: &Kubectl) -> Result<u64> {
        println!("kubectl apply: a network of pods, a Deployment that answers");
        let image = self.registry.name_for_guest("greeter:v1");
        for (name, manifest) in [("network", NETWORK), ("pods", PODS)] {
            let manifest = manifest.replace("${IMAGE}", &image);
            self.wait(&format!("{name} applied"), || {
                kubectl.apply(name, &manifest)
            })?;
        }
        self.wait("the node is ready", || node_is_ready(kubectl))?;
        self.wait("the Deployments are available", || {
            let deployments = ["deployment/answerer", "deployment/beat"];
            let wait = ["wait", "--for=condition=Available", "--timeout=1s"];
            kubectl.run(&[&wait[..], &deployments].concat())
        })?;
        let answer = greet(&Ports::address(&self.ports.answerer)).await?;
        self.say(&format!("the Deployment answers: {answer}"));
        Ok(self.seconds())
    }

    /// Replaces the OS while a client holds a connection to a pod.
    fn upgrade_os(&self, kubectl: &Kubectl) -> Result<Value> {
        println!("instarctl upgrade to {VERSION_AFTER}, a client holds a connection to a pod");
        let before = restarts(kubectl)?;
        let held = HeldConnection::open(Ports::address(&self.ports.beat))?;
        let image = self.registry.name_for_guest("instar/installer:v0.2.0");
        let mut upgrade = self.instarctl()?;
        quiet(upgrade.args(["upgrade", "--image", &image, "--wait"]))?;
        self.wait("the node shows its new OS", || {
            let node = kubectl.get(&["node", NAME])?;
            let os = node["status"]["nodeInfo"]["osImage"].to_string();
            ensure!(os.contains(VERSION_AFTER), "{os}");
            Ok(())
        })?;
        let Held {
            pause,
            lost,
            answers,
        } = held.close()?;
        let restarted = restarts(kubectl)?.saturating_sub(before);
        self.say(&format!(
            "{answers} answers over one connection, {lost} lost, the pod paused for {} ms at most; {restarted} containers restarted",
            pause.as_millis()
        ));
        ensure!(
            lost == 0 && restarted == 0,
            "the cluster noticed the upgrade"
        );
        Ok(json!({
            "to": VERSION_AFTER,
            "answers": answers,
            "connections_lost": lost,
            "longest_pause_ms": pause.as_millis() as u64,
            "containers_restarted": restarted,
        }))
    }

    fn apply(&self, kubernetes: &str) -> Result<()> {
        let config = self.write_config(kubernetes)?;
        quiet(self.instarctl()?.args(["apply-config", "-f"]).arg(config))
    }

    /// Upgrades Kubernetes by its extension.
    fn upgrade_kubernetes(&self, kubectl: &Kubectl) -> Result<Value> {
        println!("another extension: Kubernetes {NEXT}");
        let from = kubernetes_version()?;
        let begun = Instant::now();
        self.apply("v2")?;
        self.wait("the API server runs in the new version", || {
            let pod = format!("kube-apiserver-{NAME}");
            let pod = kubectl.get(&["pod", "-n", "kube-system", &pod])?;
            // Not that of the status, which is any of the image's names: both versions are one image here.
            let image = pod["spec"]["containers"][0]["image"].to_string();
            let is_ready = &pod["status"]["containerStatuses"][0]["ready"];
            ensure!(
                image.contains(NEXT) && *is_ready == true,
                "{image}, ready: {is_ready}"
            );
            node_is_ready(kubectl)
        })?;
        let seconds = begun.elapsed().as_secs();
        self.wait("the node has proven the new version", || self.proven(2))?;
        Ok(json!({"from": from, "to": NEXT, "seconds": seconds, "same_programs": true}))
    }

    /// Fails until the machine has said this often that its extensions are kept.
    fn proven(&self, often: usize) -> Result<()> {
        let console = std::fs::read(self.place.console())?;
        let console = String::from_utf8_lossy(&console);
        let times = console.matches("extensions, which are kept").count();
        ensure!(times >= often, "it is on trial");
        Ok(())
    }

    /// Gives it a kubelet that ends at once, and waits until the one before is back.
    fn break_kubernetes(&self, kubectl: &Kubectl) -> Result<Value> {
        println!("another extension, whose kubelet is broken");
        let begun = Instant::now();
        self.apply("broken")?;
        let told = self.wait("the machine has gone back by itself", || {
            let mut get = self.instarctl()?;
            let output = get.args(["get", "kubernetes", "-o", "yaml"]).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text
                .lines()
                .find(|line| line.contains("is back with the one before"));
            Ok(line.context("not yet")?.trim().to_owned())
        })?;
        self.wait("the node is ready", || node_is_ready(kubectl))?;
        println!("  {told}");
        Ok(json!({"gone_back_after_seconds": begun.elapsed().as_secs(), "said": told}))
    }

    fn say_next_steps(&self, greeter: &str) -> Result<()> {
        println!(
            "The cluster runs on; {} has the figures. Try:\n\
             \x20 export KUBECONFIG={}\n\
             \x20 {} get pods -A\n\
             \x20 curl http://{greeter}/\n\
             \x20 export TALOSCONFIG={}\n\
             \x20 {} etcd members\n\
             make cluster-stop ends it, make cluster begins anew.",
            self.place.file("result.json").display(),
            self.kubeconfig().display(),
            self.place.target.join("kubernetes/bin/kubectl").display(),
            self.place.file("talosconfig").display(),
            self.place.program("instarctl")?.display(),
        );
        Ok(())
    }
}

fn node_is_ready(kubectl: &Kubectl) -> Result<()> {
    let node = kubectl.get(&["node", NAME])?;
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
    ensure!(ready, "{}", node["status"]["conditions"]);
    Ok(())
}

/// Counts the restarts of all containers.
fn restarts(kubectl: &Kubectl) -> Result<u64> {
    let pods = kubectl.get(&["pods", "-A"])?;
    let pods = pods["items"].as_array().context("no list of pods")?;
    let containers = pods
        .iter()
        .filter_map(|pod| pod["status"]["containerStatuses"].as_array())
        .flatten();
    Ok(containers
        .filter_map(|it| it["restartCount"].as_u64())
        .sum())
}
