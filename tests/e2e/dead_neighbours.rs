//! A machine that has a config on its disk serves its API within a minute of its own time, whatever is dead around it; and one that has
//! none can be asked meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use instar_qemu::{DiskFormat, PortLease, Timing, create_blank_disk, lease_port};
use instar_tests::{
    Asked, DeadNetwork, Dhcp, HOST_FOR_GUEST, HttpServer, Identity, ImageUnderTest, MachineConfig,
    Node, NodePlan, Outcome, Scratch, Test, tests,
};
use serde_json::json;

use crate::PATIENCE;

/// From the machine's start to an API that answers.
const PROMISED: Duration = Duration::from_secs(60);
/// A container whose image is in a registry that nobody reaches.
const WEB: &str = "web";
const DISK_BYTES: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_config_server_that_refuses_or_fails_delays_the_api_by_less_than_a_minute,
        a_dead_network_delays_the_api_by_less_than_a_minute,
        a_config_server_that_comes_late_finds_the_machine_in_maintenance_mode,
    ]
}

async fn a_config_server_that_refuses_or_fails_delays_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    // Nobody else listens there as long as it is ours.
    let nobody = lease_port()?;
    machine.refused(&nobody).await?;
    let failing = HttpServer::failing()?;
    machine.answered_500(&failing).await
}

async fn a_dead_network_delays_the_api_by_less_than_a_minute(scratch: Scratch) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    machine.packets_dropped().await?;
    machine.dhcp_silent().await?;
    machine.dns_silent().await?;
    machine.registry_and_time_servers_silent().await
}

/// A machine with a config on STATE. It is reached at the first card; the second one gets its address from a server, and what the config
/// names is behind that.
struct Installed {
    scratch: Scratch,
    disk: PathBuf,
    identity: Identity,
}

impl Installed {
    async fn new(scratch: &Scratch) -> anyhow::Result<Self> {
        let disk = scratch.join("disk.img");
        create_blank_disk(&disk, DiskFormat::Raw, DISK_BYTES)?;
        let dead = DeadNetwork::SERVER;
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .name("first")
            .disk(&disk)
            .configure(move |config| {
                config
                    .install_disk("/dev/vda")
                    .registry(dead)
                    .container(WEB, &format!("{dead}/web:v1"), "")
                    .document("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: 10.0.2.15/24\n")
                    .document("apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth1\n")
                    // By its address: a name would be asked for, of a resolver that is as dead.
                    .document(&format!(
                        "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp:\n  servers: [\"{}\"]\n",
                        dead.split(':').next().unwrap_or_default()
                    ))
            })
            .boot()
            .await?;
        node.wait_until("its config is on STATE", PATIENCE, async || {
            node.service(WEB).await.map(drop)
        })
        .await?;
        Ok(Self {
            scratch: scratch.clone(),
            disk,
            identity: node.end(),
        })
    }

    /// The machine once more, in another place.
    fn plan(&self, name: &str) -> anyhow::Result<NodePlan> {
        // Its clock counts its instructions, and so does not tell how busy the host is.
        Ok(Node::plan(&self.scratch, &ImageUnderTest::first()?)
            .spec(|spec| spec.timing(Timing::InstructionsIdleOnHost))
            .name(name)
            .disk(&self.disk)
            .without_config(self.identity.twin()?))
    }

    async fn refused(&self, port: &PortLease) -> Outcome {
        let url = format!("http://{HOST_FOR_GUEST}:{}/node.yaml", port.port());
        let node = self.plan("refused")?.config_at(&url).boot().await?;
        serves_its_own_config(&node, "a config server that refuses").await
    }

    async fn answered_500(&self, server: &HttpServer) -> Outcome {
        let url = server.url_for_guest("/node.yaml");
        let node = self.plan("500")?.config_at(&url).boot().await?;
        serves_its_own_config(&node, "a config server that answers 500").await?;
        ensure!(server.requests().len() > 2, "it was hardly asked");
        Ok(())
    }

    async fn packets_dropped(&self) -> Outcome {
        let network = DeadNetwork::start(Dhcp::Answers)?;
        let url = format!("http://{}/node.yaml", DeadNetwork::SERVER);
        let node = self
            .plan("dropped")?
            .config_at(&url)
            .on(&network)
            .start_apart()?;
        serves_behind_its_cut_cable(&node, "a config server whose packets are dropped").await?;
        ensure!(network.was_asked(Asked::Tcp(5000)));
        Ok(())
    }

    async fn dhcp_silent(&self) -> Outcome {
        let network = DeadNetwork::start(Dhcp::Silent)?;
        let url = format!("http://{}/node.yaml", DeadNetwork::SERVER);
        let node = self
            .plan("no-dhcp")?
            .config_at(&url)
            .on(&network)
            .start_apart()?;
        serves_behind_its_cut_cable(&node, "a silent DHCP server").await?;
        ensure!(network.was_asked(Asked::Udp(67)));
        Ok(())
    }

    async fn dns_silent(&self) -> Outcome {
        let network = DeadNetwork::start(Dhcp::Answers)?;
        let node = self
            .plan("no-dns")?
            .config_at("http://config.example/node.yaml")
            .on(&network)
            .start_apart()?;
        serves_behind_its_cut_cable(&node, "a silent DNS server").await?;
        ensure!(network.was_asked(Asked::Udp(53)));
        Ok(())
    }

    async fn registry_and_time_servers_silent(&self) -> Outcome {
        let network = DeadNetwork::start(Dhcp::Answers)?;
        let node = self.plan("no-registry")?.on(&network).boot().await?;
        serves_its_own_config(&node, "a registry and time servers in a black hole").await?;
        node.wait_until("the registry was asked", PATIENCE, async || {
            ensure!(network.was_asked(Asked::Tcp(5000)));
            Ok(())
        })
        .await?;
        serves_its_own_config(&node, "a registry in a black hole, which is asked").await?;
        node.wait_until("a time server was asked", PATIENCE, async || {
            ensure!(network.was_asked(Asked::Udp(123)));
            Ok(())
        })
        .await?;
        serves_its_own_config(&node, "time servers in a black hole, which are asked").await?;
        let events = node.service(WEB).await?.events.unwrap_or_default();
        ensure!(
            events.events.iter().any(|event| event.state == "Preparing"),
            "{events:#?}"
        );
        Ok(())
    }
}

/// It answers whom its config on STATE lets in, by the name in it, in time.
async fn serves_its_own_config(node: &Node, beside: &str) -> Outcome {
    let hostname = node.hostname().await?;
    let since_start = node.vm().guest_clock()?;
    println!(
        "beside {beside}: the API answers {:.1} s after the start",
        since_start.as_secs_f64()
    );
    ensure!(hostname == "first", "it is called {hostname}");
    ensure!(
        since_start < PROMISED,
        "beside {beside} it took {since_start:?}"
    );
    Ok(())
}

/// The same for a machine that nobody reaches at first, so that it has the dead network alone.
async fn serves_behind_its_cut_cable(node: &Node, beside: &str) -> Outcome {
    node.wait_for_line("the API answers on port", PATIENCE)?;
    set_first_card(node, true)?;
    node.wait_for_api(PATIENCE).await?;
    serves_its_own_config(node, beside).await
}

fn set_first_card(node: &Node, up: bool) -> Outcome {
    node.vm()
        .qmp()
        .execute("set_link", json!({"name": "net0", "up": up}))?;
    Ok(())
}

trait Place: Sized {
    /// The kernel's command line names a server for the config.
    fn config_at(self, url: &str) -> Self;
    fn on(self, network: &DeadNetwork) -> Self;
    /// Starts it with the cable of the first card cut.
    fn start_apart(self) -> anyhow::Result<Node>;
}

impl Place for NodePlan {
    fn config_at(self, url: &str) -> Self {
        let argument = format!("instar.config={url}");
        self.spec(move |spec| spec.append(&argument))
    }

    fn on(self, network: &DeadNetwork) -> Self {
        self.spec(|spec| network.plug(spec))
    }

    fn start_apart(self) -> anyhow::Result<Node> {
        let node = self.start()?;
        set_first_card(&node, false)?;
        Ok(node)
    }
}

/// It is in the same generation long after init's deadline, which is shorter here than usual.
async fn a_config_server_that_comes_late_finds_the_machine_in_maintenance_mode(
    scratch: Scratch,
) -> Outcome {
    let server = HttpServer::start()?;
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname("late").to_yaml();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .config_at(&server.url_for_guest("/node.yaml"))
        .spec(|spec| spec.append("instar.boot-deadline=45"))
        .start()?;
    node.wait_for_line("maintenance mode: ", PATIENCE)?;
    node.wait_for_line("the API answers on port", PATIENCE)?;
    let since_start = node.vm().guest_clock()?;
    ensure!(since_start < PROMISED, "it took {since_start:?}");
    node.wait_until("init's deadline is over", PATIENCE, async || {
        ensure!(node.vm().guest_clock()? > PROMISED);
        Ok(())
    })
    .await?;
    server.serve("/node.yaml", config);
    node.wait_for_api(PATIENCE).await?;
    ensure!(node.hostname().await? == "late");
    node.wait_until_ready(PATIENCE).await?;
    let console = node.vm().console();
    ensure!(
        !console.contains("did not report healthy in time"),
        "init ended a machine that waited for its config"
    );
    Ok(())
}
