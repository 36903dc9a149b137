//! Calls for other nodes: two machines on a network of their own, of which the caller reaches one.

use anyhow::{Context as _, Result, ensure};
use instar_api::common::{Data, Metadata};
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{LogsRequest, ReadRequest, ServiceRestartRequest};
use instar_pki::Role;
use instar_qemu::{PortLease, VmSpec, lease_port};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Scratch, Test,
    chapters, tests,
};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Code, Request, Status, Streaming};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![one_node_answers_for_another]
}

/// The nodes' addresses on the network that they share, and one without a node.
const ONE: &str = "10.77.0.1";
const OTHER: &str = "10.77.0.2";
const NOBODY: &str = "10.77.0.9";

/// Names in the first node's /etc/hosts: two of the other node, one in its certificate and one not, and one of the
/// first node itself.
const NAMES: &str = "apiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.77.0.2\nhostnames: [other, stranger.example]\n---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.77.0.1\nhostnames: [lamp.example, not-mine.example]\n";
/// The name in the first node's certificate that is not its hostname.
const EXTRA_NAME: &str = "lamp.example";

/// Metadata of a call.
type Keys<'a> = &'a [(&'a str, &'a str)];

fn with<T>(message: T, keys: Keys<'_>) -> Result<Request<T>> {
    let mut request = Request::new(message);
    for (key, value) in keys {
        request.metadata_mut().append(
            MetadataKey::from_bytes(key.as_bytes())?,
            MetadataValue::try_from(*value)?,
        );
    }
    Ok(request)
}

/// Plans a node with a second card, on a cable between the two nodes.
fn plan(
    scratch: &Scratch,
    authority: &Identity,
    (name, address, last): (&str, &str, u8),
    cable: &str,
) -> Result<NodePlan> {
    let config = MachineConfig::new(authority)
        .hostname(name)
        .extra_name(EXTRA_NAME)
        .document(&links(address))
        .document(NAMES);
    let card = format!("virtio-net-pci,netdev=cable,mac=52:54:00:77:00:0{last},romfile=");
    let cable = format!("socket,id=cable,{cable}");
    let arguments = ["-netdev", &cable, "-device", &card];
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .config(config.to_yaml(), authority.with_role(Role::Admin)?)
        .spec(|spec| arguments.into_iter().fold(spec, VmSpec::extra_argument)))
}

fn links(address: &str) -> String {
    format!(
        "apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\naddresses:\n  - address: {address}/24\n"
    )
}

async fn one_node_answers_for_another(scratch: Scratch) -> Outcome {
    let (one, other) = start_both(&scratch)?;
    chapters![
        one_reaches_the_other(&one, &other),
        calls_for_one_are_answered_by_that_one(&one),
        calls_for_several_become_one(&one),
        roles_are_those_of_who_called(&one, &other),
        instarctl_names_the_nodes(&one, &scratch),
    ]
    .await
}

fn start_both(scratch: &Scratch) -> Result<(Node, Node)> {
    let authority = Identity::administrator()?;
    let port: PortLease = lease_port()?;
    let end = |what: &str| format!("{what}=127.0.0.1:{}", port.port());
    let one = plan(scratch, &authority, ("one", ONE, 1), &end("listen"))?;
    let other = plan(scratch, &authority, ("other", OTHER, 2), &end("connect"))?;
    Ok((one.start()?, other.start()?))
}

async fn one_reaches_the_other(one: &Node, other: &Node) -> Outcome {
    for node in [one, other] {
        node.wait_for_api(PATIENCE).await?;
        node.wait_until_ready(PATIENCE).await?;
    }
    one.wait_until("it reaches the other one", PATIENCE, async || {
        hostname(one, TO_OTHER).await.map(drop)
    })
    .await
}

async fn calls_for_one_are_answered_by_that_one(one: &Node) -> Outcome {
    chapters![
        each_node_is_found_by_its_addresses_and_names(one),
        a_stream_is_the_one_of_the_other(one),
        a_missing_file_is_the_others(one),
        a_refusal_is_the_others(one),
        services_without_metadata_are_those_of_the_other(one),
        who_cannot_be_reached_or_proved_is_refused(one),
    ]
    .await
}

async fn hostname(node: &Node, keys: Keys<'_>) -> Result<Vec<(String, Metadata)>> {
    let reply = node.machine().await?.hostname(with((), keys)?).await?;
    let rows = reply.into_inner().messages.into_iter();
    Ok(rows
        .map(|row| (row.hostname, row.metadata.unwrap_or_default()))
        .collect())
}

async fn each_node_is_found_by_its_addresses_and_names(node: &Node) -> Outcome {
    for (keys, name) in [
        (&[("node", OTHER)][..], "other"),
        (&[("node", ONE)], "one"),
        (&[], "one"),
        // Names that are resolved.
        (&[("node", "other")], "other"),
        (&[("node", "OTHER")], "other"),
        (&[("node", EXTRA_NAME)], "one"),
        // A call that was forwarded before.
        (&[("node", OTHER), ("proxyfrom", "10.77.0.3")], "one"),
    ] {
        let rows = hostname(node, keys).await?;
        let expected = [(name.to_owned(), Metadata::default())];
        ensure!(rows == expected, "{keys:?}: {rows:?}");
    }
    Ok(())
}

/// Metadata of a call for the other node.
const TO_OTHER: Keys<'_> = &[("node", OTHER)];

fn file(path: &str) -> ReadRequest {
    ReadRequest {
        path: path.to_owned(),
    }
}

async fn a_stream_is_the_one_of_the_other(node: &Node) -> Outcome {
    let path = "/proc/sys/kernel/random/boot_id";
    let mut machine = node.machine().await?;
    let own = machine.read(file(path)).await?.into_inner();
    let theirs = machine.read(with(file(path), TO_OTHER)?).await?;
    let (own, theirs) = (all(own).await?, all(theirs.into_inner()).await?);
    ensure!(own.len() == theirs.len(), "{own:?} {theirs:?}");
    ensure!(own != theirs, "{own:?} {theirs:?}");
    let mut metadata = theirs.iter().filter_map(|data| data.metadata.as_ref());
    ensure!(metadata.next().is_none(), "{theirs:?}");
    Ok(())
}

async fn a_missing_file_is_the_others(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let missing = with(file("/no/such/file"), TO_OTHER)?;
    let missing = match machine.read(missing).await {
        Ok(stream) => all(stream.into_inner()).await.err(),
        Err(status) => Some(status),
    };
    let missing = missing.context("there is such a file")?;
    ensure!(missing.code() == Code::NotFound, "{missing}");
    Ok(())
}

async fn a_refusal_is_the_others(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let restart = with(restart_of_apid(), TO_OTHER)?;
    let refused = machine.service_restart(restart).await.err();
    let refused = refused.context("apid was restarted")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
    Ok(())
}

fn restart_of_apid() -> ServiceRestartRequest {
    ServiceRestartRequest {
        id: "apid".to_owned(),
    }
}

async fn services_without_metadata_are_those_of_the_other(node: &Node) -> Outcome {
    let mut state = StateClient::new(node.channel().await?);
    let get = GetRequest {
        namespace: "network".to_owned(),
        r#type: "HostnameStatuses.net.talos.dev".to_owned(),
        id: "hostname".to_owned(),
        options: None,
    };
    let got = state.get(with(get, TO_OTHER)?).await?.into_inner();
    let spec = got.resource.and_then(|it| it.spec).unwrap_or_default();
    ensure!(spec.yaml_spec.contains("hostname: other"), "{spec:?}");
    Ok(())
}

/// Refused are an address without a node, a text that is neither address nor name, and names of nodes whose
/// certificates lack them.
async fn who_cannot_be_reached_or_proved_is_refused(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    for (name, code, words) in UNREACHABLE {
        let refused = machine.hostname(with((), &[("node", name)])?).await;
        let refused = refused.err().with_context(|| format!("{name} answered"))?;
        println!("{name}: {refused}");
        ensure!(refused.code() == code, "{name}: {refused}");
        ensure!(refused.message().contains(words), "{name}: {refused}");
    }
    Ok(())
}

const UNREACHABLE: [(&str, Code, &str); 6] = [
    (NOBODY, Code::Unavailable, NOBODY),
    ("10.77.0.2:50000", Code::InvalidArgument, "without a port"),
    ("other:50000", Code::InvalidArgument, "without a port"),
    ("nobody.invalid", Code::Unavailable, "no address"),
    ("stranger.example", Code::Unavailable, "certSANs"),
    ("not-mine.example", Code::Unavailable, "certSANs"),
];

async fn calls_for_several_become_one(one: &Node) -> Outcome {
    chapters![
        each_node_has_its_answer_in_its_place(one),
        a_refusal_is_the_element_of_who_refuses(one),
        streams_of_several_become_one(one),
    ]
    .await
}

/// Names in one call, each with the node that answers, and the status if no node answers.
const SEVERAL: [(&str, &str, Option<Code>); 7] = [
    (OTHER, "other", None),
    (ONE, "one", None),
    (NOBODY, "", Some(Code::Unavailable)),
    ("10.77.0.2:50000", "", Some(Code::InvalidArgument)),
    ("other", "other", None),
    (EXTRA_NAME, "one", None),
    ("nobody.invalid", "", Some(Code::Unavailable)),
];

async fn each_node_has_its_answer_in_its_place(node: &Node) -> Outcome {
    let keys = SEVERAL.map(|(name, ..)| ("nodes", name));
    let rows = hostname(node, &keys).await?;
    println!("{rows:#?}");
    ensure!(rows.len() == SEVERAL.len(), "{} rows", rows.len());
    for ((hostname, metadata), (name, answers, code)) in rows.into_iter().zip(SEVERAL) {
        ensure!(metadata.hostname == name, "{name}: {metadata:?}");
        ensure!(hostname == answers, "{name}: {hostname}");
        let told = metadata.status.map(|status| Code::from_i32(status.code));
        ensure!(told == code, "{name}: {told:?}");
        if code == Some(Code::Unavailable) {
            ensure!(metadata.error.contains(name), "{name}: {}", metadata.error);
        }
    }
    Ok(())
}

async fn a_refusal_is_the_element_of_who_refuses(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let both: Keys<'_> = &[("nodes", ONE), ("nodes", OTHER)];
    let restart = with(restart_of_apid(), both)?;
    let reply = machine.service_restart(restart).await?;
    for row in reply.into_inner().messages {
        let status = row.metadata.unwrap_or_default().status;
        let code = status.map(|status| status.code);
        ensure!(code == Some(Code::FailedPrecondition.into()), "{code:?}");
    }
    Ok(())
}

async fn streams_of_several_become_one(node: &Node) -> Outcome {
    let told = logs_of(node, [OTHER, ONE, NOBODY]).await?;
    for name in [OTHER, ONE] {
        let parts = told_by(name, &told).flat_map(|data| data.bytes.clone());
        let text = String::from_utf8_lossy(&parts.collect::<Vec<u8>>()).into_owned();
        ensure!(text.contains("booted v0.1.0"), "{name}: {text}");
    }
    let away: Vec<&Data> = told_by(NOBODY, &told).collect();
    ensure!(away.len() == 1, "{away:?}");
    let error = away[0].metadata.clone().unwrap_or_default();
    let code = error.status.map(|status| status.code);
    ensure!(code == Some(Code::Unavailable.into()), "{away:?}");
    let of_both = told_by(ONE, &told).count() + told_by(OTHER, &told).count();
    ensure!(told.len() == of_both + 1, "somebody else spoke");
    Ok(())
}

async fn logs_of(node: &Node, names: [&str; 3]) -> Result<Vec<Data>> {
    let logs = LogsRequest {
        id: "machined".to_owned(),
        tail_lines: -1,
        ..LogsRequest::default()
    };
    let keys = names.map(|name| ("nodes", name));
    let mut machine = node.machine().await?;
    let told = machine.logs(with(logs, &keys)?).await?;
    Ok(all(told.into_inner()).await?)
}

fn told_by<'a>(name: &'a str, told: &'a [Data]) -> impl Iterator<Item = &'a Data> {
    told.iter().filter(move |data| {
        let metadata = data.metadata.as_ref();
        metadata.is_some_and(|metadata| metadata.hostname == name)
    })
}

/// Returns the code with which this identity's call of Read ends; none when it is answered.
async fn read_as(node: &Node, who: &Identity, keys: Keys<'_>) -> Result<Option<Code>> {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    let read = with(file("/etc/os-release"), keys)?;
    let answer = match machine.read(read).await {
        Ok(stream) => all(stream.into_inner()).await.map(drop),
        Err(status) => Err(status),
    };
    Ok(answer.err().map(|status| status.code()))
}

async fn roles_are_those_of_who_called(one: &Node, other: &Node) -> Outcome {
    chapters![
        roles_count_through_the_one_to_the_other(one),
        roles_count_at_once(other),
        a_stranger_is_nobody_whatever_he_claims(one, other),
    ]
    .await
}

const AS_ADMIN: (&str, &str) = ("talos-role", "os:admin");
const AS_READER: (&str, &str) = ("talos-role", "os:reader");
const AS_IMPERSONATOR: (&str, &str) = ("talos-role", "os:impersonator");
const ON: (&str, &str) = ("node", OTHER);
const DENIED: Option<Code> = Some(Code::PermissionDenied);

async fn roles_count_through_the_one_to_the_other(one: &Node) -> Outcome {
    for (role, keys, expected) in [
        (Role::Admin, &[ON][..], None),
        (Role::Reader, &[ON], DENIED),
        (Role::Reader, &[ON, AS_ADMIN], DENIED),
        (Role::Admin, &[ON, AS_READER], None),
        (Role::Impersonator, &[ON], DENIED),
        (Role::Impersonator, &[ON, AS_ADMIN], None),
        (Role::Impersonator, &[ON, AS_READER], DENIED),
    ] {
        reading_ends_with(one, role, keys, expected).await?;
    }
    Ok(())
}

async fn roles_count_at_once(other: &Node) -> Outcome {
    for (role, keys, expected) in [
        (Role::Reader, &[AS_ADMIN][..], DENIED),
        (Role::Impersonator, &[], DENIED),
        (Role::Impersonator, &[AS_ADMIN], None),
        (Role::Impersonator, &[AS_READER], DENIED),
        (Role::Impersonator, &[AS_READER, AS_ADMIN], None),
        (Role::Impersonator, &[AS_IMPERSONATOR], DENIED),
    ] {
        reading_ends_with(other, role, keys, expected).await?;
    }
    Ok(())
}

async fn reading_ends_with(
    node: &Node,
    role: Role,
    keys: Keys<'_>,
    expected: Option<Code>,
) -> Outcome {
    let what = format!("{role:?}, {keys:?}");
    let who = node.identity().with_role(role)?;
    let ended = read_as(node, &who, keys).await?;
    ensure!(ended == expected, "{what}: {ended:?}, not {expected:?}");
    Ok(())
}

/// The client's certificate is of another authority.
async fn a_stranger_is_nobody_whatever_he_claims(one: &Node, other: &Node) -> Outcome {
    let stranger = Identity::administrator()?.with_role(Role::Impersonator)?;
    let stranger = stranger.trusting(one.identity());
    let ended = read_as(other, &stranger, &[AS_ADMIN]).await;
    ensure!(
        !matches!(ended, Ok(None | DENIED)),
        "the handshake went well: {ended:?}"
    );
    Ok(())
}

async fn instarctl_names_the_nodes(node: &Node, scratch: &Scratch) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let both = format!("{ONE},{OTHER}");
    let said = client.run(&["--nodes", &both, "version"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    for name in [ONE, OTHER] {
        ensure!(said.output.contains(name), "{said:#?}");
    }
    for name in [OTHER, "other"] {
        let said = client.run(&["--nodes", name, "get", "hostname"]).await?;
        ensure!(said.code == Some(0), "{said:#?}");
        ensure!(said.output.contains("other"), "{said:#?}");
    }
    Ok(())
}

async fn all<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}
