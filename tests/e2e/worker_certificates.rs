//! A machine without the authority's key gets its certificate from a control plane: two machines on a network of their own, the worker with
//! the config that `talosctl gen config` writes.

use anyhow::{Context as _, Result, ensure};
use instar_api::securityapi::security_service_client::SecurityServiceClient;
use instar_api::securityapi::{CertificateRequest, CertificateResponse};
use instar_api::{CERTIFICATES_PORT, TOKEN_KEY};
use instar_pki::{PrivateKey, SubjectName, client_roles, request_for_server, server_names};
use instar_qemu::{PortLease, VmSpec, lease_port};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Scratch, Test,
    chapters, fleet_file, tests,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_worker_gets_its_certificate_from_the_control_plane,
        a_new_authority_reaches_the_worker_by_the_control_plane
    ]
}

/// The machines' addresses on the network that they share.
const PLANE: &str = "10.77.0.1";
const WORKER: &str = "10.77.0.2";
/// The address of this host for a guest, from which its requests come.
const HOST: &str = "10.0.2.2";

/// As `gen config` of Talos 1.14 has written it, for the endpoint `https://10.0.2.15:6443`.
const GENERATED: &str = include_str!("../../config/tests/data/1.14/worker.yaml");
/// Where the document with the disk begins, which these machines have not, and where it ends.
const INSTALL: (&str, &str) = ("kind: UnattendedInstallConfig\n", "---\n");

struct Cluster {
    authority: Identity,
    token: String,
    worker_yaml: String,
}

/// Returns the value of a field of the generated config.
fn generated(name: &str) -> Result<&'static str> {
    let mut lines = GENERATED.lines();
    let line = lines.find(|line| line.trim_start().starts_with(name));
    let field = line.and_then(|line| line.split_once(": "));
    Ok(field.with_context(|| format!("no {name}"))?.1)
}

impl Cluster {
    fn new() -> Result<Self> {
        let authority = Identity::administrator()?;
        let ours = MachineConfig::new(&authority).to_yaml();
        let mut lines = ours.lines();
        let ours = lines.find_map(|line| line.trim().strip_prefix("crt: "));
        let yaml = GENERATED
            .replace(generated("crt")?, ours.context("no crt")?)
            .replace("10.0.2.15", PLANE);
        Ok(Self {
            worker_yaml: without_install(&yaml)? + &links(WORKER),
            token: generated("token")?.to_owned(),
            authority,
        })
    }

    fn plane_yaml(&self) -> Result<String> {
        let config = MachineConfig::new(&self.authority)
            .hostname("plane")
            .to_yaml();
        let config = config.replace("instar.0123456789abcdef", &self.token);
        Ok(config + &links(PLANE))
    }
}

/// Removes the document with the disk: with another one, the worker would wait for its image.
fn without_install(yaml: &str) -> Result<String> {
    let (before, rest) = yaml.split_once(INSTALL.0).context("no install")?;
    let (_, after) = rest.split_once(INSTALL.1).context("no end")?;
    let install = "kind: UnattendedInstallConfig\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"/dev/vda\"\n";
    Ok(format!("{before}{install}---\n{after}"))
}

fn links(address: &str) -> String {
    format!(
        "---\napiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\naddresses:\n  - address: {address}/24\n"
    )
}

fn plan(
    scratch: &Scratch,
    (name, last): (&str, u8),
    yaml: String,
    identity: Identity,
    cable: &str,
) -> Result<NodePlan> {
    let card = format!("virtio-net-pci,netdev=cable,mac=52:54:00:77:00:0{last},romfile=");
    let cable = format!("socket,id=cable,{cable}");
    let arguments = ["-netdev", &cable, "-device", &card];
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .config(yaml, identity)
        .spec(|spec| arguments.into_iter().fold(spec, VmSpec::extra_argument)))
}

/// The two machines' ends of their cable.
struct Cable(PortLease);

impl Cable {
    fn end(&self, what: &str) -> String {
        format!("{what}=127.0.0.1:{}", self.0.port())
    }
}

async fn a_worker_gets_its_certificate_from_the_control_plane(scratch: Scratch) -> Outcome {
    let (cluster, cable) = (Cluster::new()?, Cable(lease_port()?));
    let worker = boot_worker(&scratch, &cluster, &cable).await?;
    nobody_can_verify_it_yet(&worker, &cluster).await?;
    let plane = boot_plane(&scratch, &cluster, &cable).await?;
    chapters![
        it_gets_a_certificate(&worker, &cluster),
        calls_for_it_go_by_the_control_plane(&plane),
        instarctl_verifies_it(&worker, &cluster, &scratch),
        who_has_not_the_token_gets_none(&plane, &cluster),
        a_certificate_is_for_its_caller_alone(&plane, &cluster),
    ]
    .await?;
    drop(plane);
    it_keeps_it_over_a_power_cut(worker, &cluster).await
}

/// Boots the worker alone: its control plane is dead.
async fn boot_worker(scratch: &Scratch, cluster: &Cluster, cable: &Cable) -> Result<Node> {
    let any = cluster.authority.twin()?.believing_any_node();
    let yaml = cluster.worker_yaml.clone();
    let plan = plan(scratch, ("worker", 2), yaml, any, &cable.end("listen"))?;
    plan.blank_disk()?.boot().await
}

async fn boot_plane(scratch: &Scratch, cluster: &Cluster, cable: &Cable) -> Result<Node> {
    let (yaml, who) = (cluster.plane_yaml()?, cluster.authority.twin()?);
    let plan = plan(scratch, ("plane", 1), yaml, who, &cable.end("connect"))?;
    plan.forward(CERTIFICATES_PORT).boot().await
}

async fn nobody_can_verify_it_yet(worker: &Node, cluster: &Cluster) -> Outcome {
    let way = worker.way_in(&cluster.authority)?;
    ensure!(way.connect().await.is_err(), "it was verified");
    Ok(())
}

async fn is_verified(worker: &Node, cluster: &Cluster) -> Result<()> {
    let way = worker.way_in(&cluster.authority)?;
    let channel = way.connect().await?;
    let mut machine =
        instar_api::machine::machine_service_client::MachineServiceClient::new(channel);
    machine.version(()).await?;
    Ok(())
}

async fn it_gets_a_certificate(worker: &Node, cluster: &Cluster) -> Outcome {
    let verified = async || is_verified(worker, cluster).await;
    worker
        .wait_until("clients can verify it", PATIENCE, verified)
        .await?;
    let names = server_names(&worker.shown_certificate().await?)?;
    ensure!(names.contains(&WORKER.into()), "{names:?}");
    // Both machines have it, on networks of their own; nobody gets a certificate for an address of the control plane.
    ensure!(!names.contains(&"10.0.2.15".into()), "{names:?}");
    Ok(())
}

async fn calls_for_it_go_by_the_control_plane(plane: &Node) -> Outcome {
    let mut request = Request::new(());
    request.metadata_mut().insert("node", WORKER.parse()?);
    let reply = plane.machine().await?.hostname(request).await?.into_inner();
    let name = reply.messages.first().context("no answer")?;
    ensure!(name.hostname.starts_with("instar-"), "{name:?}");
    Ok(())
}

async fn instarctl_verifies_it(worker: &Node, cluster: &Cluster, scratch: &Scratch) -> Outcome {
    let config = cluster.authority.client_config(&worker.endpoint()?)?;
    let config = scratch.write("verifying.yaml", config)?;
    let instarctl = Instarctl::of(worker, scratch)?.with_config(config);
    let said = instarctl.run(&["--nodes", "127.0.0.1", "version"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    Ok(())
}

/// Asks the control plane for a certificate.
async fn ask(
    plane: &Node,
    token: &str,
    csr: String,
) -> Result<Result<CertificateResponse, Status>> {
    let trusted = Certificate::from_pem(plane.identity().trusted());
    let tls = ClientTlsConfig::new().ca_certificate(trusted);
    let address = plane.guest_port(CERTIFICATES_PORT)?;
    let way = Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?;
    let mut client = SecurityServiceClient::new(way.connect().await?);
    let mut request = Request::new(CertificateRequest {
        csr: csr.into_bytes(),
    });
    request.metadata_mut().insert(TOKEN_KEY, token.parse()?);
    Ok(client
        .certificate(request)
        .await
        .map(tonic::Response::into_inner))
}

fn request(names: &[&str]) -> Result<String> {
    let names: Vec<SubjectName> = names.iter().map(|name| (*name).into()).collect();
    Ok(request_for_server(&PrivateKey::generate()?, &names)?)
}

async fn who_has_not_the_token_gets_none(plane: &Node, cluster: &Cluster) -> Outcome {
    for token in ["", "cmcjxo.o84o2hz4vnh6771n", &cluster.token[1..]] {
        let refused = ask(plane, token, request(&[HOST])?).await?;
        let code = refused.err().map(|status| status.code());
        ensure!(code == Some(Code::Unauthenticated), "{token:?}: {code:?}");
    }
    Ok(())
}

async fn a_certificate_is_for_its_caller_alone(plane: &Node, cluster: &Cluster) -> Outcome {
    chapters![
        a_request_for_another_address_is_refused(plane, cluster),
        who_claims_to_be_an_administrator_gets_a_servers(plane, cluster),
        the_two_ports_are_not_mixed_up(plane),
    ]
    .await
}

async fn a_request_for_another_address_is_refused(plane: &Node, cluster: &Cluster) -> Outcome {
    let elsewhere = ask(plane, &cluster.token, request(&["10.77.0.9", "x"])?).await?;
    let code = elsewhere.err().map(|status| status.code());
    ensure!(code == Some(Code::PermissionDenied), "{code:?}");
    Ok(())
}

async fn who_claims_to_be_an_administrator_gets_a_servers(
    plane: &Node,
    cluster: &Cluster,
) -> Outcome {
    let signed = ask(plane, &cluster.token, claims_to_be_an_administrator()?).await??;
    let certificate = instar_pki::certificate_from_pem(std::str::from_utf8(&signed.crt)?)?;
    ensure!(
        client_roles(&certificate).is_err(),
        "a client's certificate"
    );
    let names = server_names(&certificate)?;
    ensure!(names == [HOST.into()].into(), "{names:?}");
    let log = plane.log("machined").await?;
    ensure!(
        log.contains("a certificate for the worker 10.0.2.2"),
        "{log}"
    );
    Ok(())
}

/// A request with an administrator's organization, for clients, and for the control plane's address too.
fn claims_to_be_an_administrator() -> Result<String> {
    let names = [HOST, PLANE, "plane"].map(str::to_owned);
    let mut parameters = rcgen::CertificateParams::new(names)?;
    let name = &mut parameters.distinguished_name;
    name.push(rcgen::DnType::OrganizationName, "os:admin");
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate()?;
    Ok(parameters.serialize_request(&key)?.pem()?)
}

async fn the_two_ports_are_not_mixed_up(plane: &Node) -> Outcome {
    let mut wrong = SecurityServiceClient::new(plane.channel().await?);
    let refused = wrong.certificate(CertificateRequest::default()).await.err();
    let code = refused.map(|status| status.code());
    ensure!(code == Some(Code::PermissionDenied), "{code:?}");
    Ok(())
}

/// No control plane lives, and the worker shows what it has kept.
async fn it_keeps_it_over_a_power_cut(worker: Node, cluster: &Cluster) -> Outcome {
    worker.wait_until_ready(PATIENCE).await?;
    let before = worker.shown_certificate().await?;
    let worker = worker.power_cycle().await?;
    let verified = async || is_verified(&worker, cluster).await;
    worker
        .wait_until("clients can verify it", PATIENCE, verified)
        .await?;
    ensure!(worker.shown_certificate().await? == before, "another one");
    Ok(())
}

async fn a_new_authority_reaches_the_worker_by_the_control_plane(scratch: Scratch) -> Outcome {
    let (cluster, cable) = (Cluster::new()?, Cable(lease_port()?));
    let worker = boot_worker(&scratch, &cluster, &cable).await?;
    let plane = boot_plane(&scratch, &cluster, &cable).await?;
    it_gets_a_certificate(&worker, &cluster).await?;
    let config = cluster.authority.client_config(&plane.endpoint()?)?;
    let config = scratch.write("rotating.yaml", config)?;
    let client = Instarctl::of(&plane, &scratch)?.with_config(config);
    chapters![
        the_authority_of_both_is_replaced(&client, [&worker, &plane], &scratch),
        both_are_verified_by_the_new_one(&client, [&worker, &plane]),
    ]
    .await?;
    ensure!(is_verified(&worker, &cluster).await.is_err(), "by the old");
    Ok(())
}

async fn the_authority_of_both_is_replaced(
    client: &Instarctl,
    [worker, plane]: [&Node; 2],
    scratch: &Scratch,
) -> Outcome {
    let (worker, plane) = (worker.endpoint()?, plane.endpoint()?);
    let nodes = [("a-worker", &worker), ("plane", &plane)];
    let fleet = fleet_file(scratch, nodes)?.display().to_string();
    let state = scratch.join("rotation").display().to_string();
    let rotate = ["fleet", "rotate", "--fleet", &fleet, "--state", &state];
    let said = client.run(&rotate).await?;
    println!("{}{}", said.output, said.complaint);
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(!said.output.contains("signed here"), "{said:#?}");
    Ok(())
}

async fn both_are_verified_by_the_new_one(client: &Instarctl, nodes: [&Node; 2]) -> Outcome {
    for node in nodes {
        let at = node.endpoint()?;
        let version = ["--endpoints", &at, "version"];
        let said = client.run_elsewhere(&version).await?;
        ensure!(said.code == Some(0), "{said:#?}");
    }
    Ok(())
}
