//! A machine with a config on its disk serves its API within a minute of its own time, even if everything around it is
//! dead; a machine without one can be asked meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use instar_qemu::{DiskFormat, Timing, create_blank_disk, lease_port};
use instar_tests::{
    Asked, DeadNetwork, Dhcp, HOST_FOR_GUEST, HttpServer, Identity, ImageUnderTest, MachineConfig,
    Node, NodePlan, Outcome, Scratch, Test, chapters, tests,
};
use serde_json::json;

use crate::PATIENCE;

/// Limit on the time from the machine's start to an API that answers.
const PROMISED: Duration = Duration::from_secs(60);
/// A container whose image is in an unreachable registry.
const WEB: &str = "web";
const DISK_BYTES: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_config_server_that_refuses_delays_the_api_by_less_than_a_minute,
        a_config_server_that_answers_500_delays_the_api_by_less_than_a_minute,
        a_config_server_whose_packets_are_dropped_delays_the_api_by_less_than_a_minute,
        a_silent_dhcp_server_delays_the_api_by_less_than_a_minute,
        a_silent_dns_server_delays_the_api_by_less_than_a_minute,
        a_registry_in_a_black_hole_delays_the_api_by_less_than_a_minute,
        time_servers_in_a_black_hole_delay_the_api_by_less_than_a_minute,
        a_config_server_that_comes_late_finds_the_machine_in_maintenance_mode,
    ]
}

async fn a_config_server_that_refuses_delays_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    // The lease keeps other processes from this port.
    let nobody = lease_port()?;
    let url = format!("http://{HOST_FOR_GUEST}:{}/node.yaml", nobody.port());
    let node = machine.plan()?.config_at(&url).boot().await?;
    serves_its_own_config(&node, "a config server that refuses").await
}

async fn a_config_server_that_answers_500_delays_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let server = HttpServer::failing()?;
    let url = server.url_for_guest("/node.yaml");
    let node = machine.plan()?.config_at(&url).boot().await?;
    serves_its_own_config(&node, "a config server that answers 500").await?;
    ensure!(server.requests().len() > 2, "it was hardly asked");
    Ok(())
}

async fn a_config_server_whose_packets_are_dropped_delays_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let network = DeadNetwork::start(Dhcp::Answers)?;
    let url = format!("http://{}/node.yaml", DeadNetwork::SERVER);
    let node = machine.plan()?.config_at(&url).on(&network).start_apart()?;
    serves_behind_its_cut_cable(&node, "a config server whose packets are dropped").await?;
    ensure!(network.was_asked(Asked::Tcp(5000)));
    Ok(())
}

async fn a_silent_dhcp_server_delays_the_api_by_less_than_a_minute(scratch: Scratch) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let network = DeadNetwork::start(Dhcp::Silent)?;
    let url = format!("http://{}/node.yaml", DeadNetwork::SERVER);
    let node = machine.plan()?.config_at(&url).on(&network).start_apart()?;
    serves_behind_its_cut_cable(&node, "a silent DHCP server").await?;
    ensure!(network.was_asked(Asked::Udp(67)));
    Ok(())
}

async fn a_silent_dns_server_delays_the_api_by_less_than_a_minute(scratch: Scratch) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let network = DeadNetwork::start(Dhcp::Answers)?;
    let node = machine
        .plan()?
        .config_at("http://config.example/node.yaml")
        .on(&network)
        .start_apart()?;
    serves_behind_its_cut_cable(&node, "a silent DNS server").await?;
    ensure!(network.was_asked(Asked::Udp(53)));
    Ok(())
}

async fn a_registry_in_a_black_hole_delays_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let network = DeadNetwork::start(Dhcp::Answers)?;
    let node = machine.plan()?.on(&network).boot().await?;
    serves_its_own_config(&node, "a registry in a black hole").await?;
    wait_until_asked(&node, &network, Asked::Tcp(5000)).await?;
    serves_its_own_config(&node, "a registry in a black hole, which is asked").await?;
    let events = node.service(WEB).await?.events.unwrap_or_default();
    ensure!(
        events.events.iter().any(|event| event.state == "Preparing"),
        "{events:#?}"
    );
    Ok(())
}

async fn time_servers_in_a_black_hole_delay_the_api_by_less_than_a_minute(
    scratch: Scratch,
) -> Outcome {
    let machine = Installed::new(&scratch).await?;
    let network = DeadNetwork::start(Dhcp::Answers)?;
    let node = machine.plan()?.on(&network).boot().await?;
    serves_its_own_config(&node, "time servers in a black hole").await?;
    wait_until_asked(&node, &network, Asked::Udp(123)).await?;
    serves_its_own_config(&node, "time servers in a black hole, which are asked").await
}

async fn wait_until_asked(node: &Node, network: &DeadNetwork, asked: Asked) -> Outcome {
    node.wait_until(&format!("{asked:?} was asked"), PATIENCE, async || {
        ensure!(network.was_asked(asked));
        Ok(())
    })
    .await
}

/// A machine with a config on STATE. Clients reach it at the first card; the second card gets its address from a
/// server, and the config's servers are behind that card.
struct Installed {
    scratch: Scratch,
    disk: PathBuf,
    identity: Identity,
}

impl Installed {
    async fn new(scratch: &Scratch) -> anyhow::Result<Self> {
        let disk = blank_disk(scratch)?;
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .name("first")
            .disk(&disk)
            .configure(|config| config.install_disk("/dev/vda").behind_the_second_card())
            .boot()
            .await?;
        let has_its_config = async || node.service(WEB).await.map(drop);
        node.wait_until("its config is on STATE", PATIENCE, has_its_config)
            .await?;
        Ok(Self {
            identity: node.end(),
            scratch: scratch.clone(),
            disk,
        })
    }

    /// Plans the machine once more, with other surroundings.
    fn plan(&self) -> anyhow::Result<NodePlan> {
        // The machine's clock counts instructions, so the host's load does not matter.
        Ok(Node::plan(&self.scratch, &ImageUnderTest::first()?)
            .spec(|spec| spec.timing(Timing::InstructionsIdleOnHost))
            .name("elsewhere")
            .disk(&self.disk)
            .without_config(self.identity.twin()?))
    }
}

fn blank_disk(scratch: &Scratch) -> anyhow::Result<PathBuf> {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, DISK_BYTES)?;
    Ok(disk)
}

trait Neighbours {
    /// Adds an address for the first card; for the second, one of a DHCP server, and behind it a registry and a time
    /// server.
    fn behind_the_second_card(self) -> Self;
}

impl Neighbours for MachineConfig {
    fn behind_the_second_card(self) -> Self {
        let dead = DeadNetwork::SERVER;
        self.registry(dead)
            .container(WEB, &format!("{dead}/web:v1"), "")
            .document("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: 10.0.2.15/24\n")
            .document("apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth1\n")
            // By its address: a name would need a resolver, which is as dead.
            .document(&format!(
                "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp:\n  servers: [\"{}\"]\n",
                dead.split(':').next().unwrap_or_default()
            ))
    }
}

/// The node answers the administrator of its config on STATE, under the config's hostname, in time.
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

/// As above, for a machine whose first cable is cut, so that it has the dead network alone.
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
    /// Names a server for the config in the kernel's command line.
    fn config_at(self, url: &str) -> Self;
    fn on(self, network: &DeadNetwork) -> Self;
    /// Starts the machine with the cable of the first card cut.
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

/// The machine is in the same generation long after init's deadline, which is shorter here than usual.
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
        // As for the machines above: its clock is its own.
        .spec(|spec| spec.timing(Timing::InstructionsIdleOnHost))
        .start()?;
    chapters![
        waits_in_maintenance_mode_past_inits_deadline(&node),
        takes_its_config_as_soon_as_it_is_served(&node, &server, config),
    ]
    .await
}

async fn waits_in_maintenance_mode_past_inits_deadline(node: &Node) -> Outcome {
    node.wait_for_line("maintenance mode: ", PATIENCE)?;
    node.wait_for_line("the API answers on port", PATIENCE)?;
    let since_start = node.vm().guest_clock()?;
    ensure!(since_start < PROMISED, "it took {since_start:?}");
    node.wait_until("init's deadline is over", PATIENCE, async || {
        ensure!(node.vm().guest_clock()? > PROMISED);
        Ok(())
    })
    .await
}

async fn takes_its_config_as_soon_as_it_is_served(
    node: &Node,
    server: &HttpServer,
    config: String,
) -> Outcome {
    server.serve("/node.yaml", config);
    node.wait_for_api(PATIENCE).await?;
    ensure!(node.hostname().await? == "late");
    node.wait_until_ready(PATIENCE).await?;
    ensure!(
        !node
            .vm()
            .console()
            .contains("did not report healthy in time"),
        "init ended a machine that waited for its config"
    );
    Ok(())
}
