//! Calls for other nodes: two machines on a network of their own, of which the caller reaches one.

use anyhow::{Context as _, ensure};
use instar_api::common::{Data, Metadata};
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{LogsRequest, ReadRequest, ServiceRestartRequest};
use instar_pki::Role;
use instar_qemu::{PortLease, VmSpec, lease_port};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, NodePlan, Outcome, Scratch, Test,
    tests,
};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Code, Request, Status, Streaming};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![one_node_answers_for_another]
}

/// The nodes' addresses on the network that they share, and one that nobody has.
const ONE: &str = "10.77.0.1";
const OTHER: &str = "10.77.0.2";
const NOBODY: &str = "10.77.0.9";

/// Names that are in the one node's /etc/hosts: of the other one, as its certificate has it and as it does not, and of the one itself.
const NAMES: &str = "apiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.77.0.2\nhostnames: [other, stranger.example]\n---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.77.0.1\nhostnames: [lamp.example, not-mine.example]\n";
/// The name in the one's certificate that is not its hostname.
const EXTRA_NAME: &str = "lamp.example";

/// Metadata of a call.
type Keys<'a> = &'a [(&'a str, &'a str)];

fn with<T>(message: T, keys: Keys<'_>) -> anyhow::Result<Request<T>> {
    let mut request = Request::new(message);
    for (key, value) in keys {
        request.metadata_mut().append(
            MetadataKey::from_bytes(key.as_bytes())?,
            MetadataValue::try_from(*value)?,
        );
    }
    Ok(request)
}

/// A node with a second card, on a cable between the two.
fn plan(
    scratch: &Scratch,
    authority: &Identity,
    (name, address, last): (&str, &str, u8),
    cable: &str,
) -> anyhow::Result<NodePlan> {
    let links = format!(
        "apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\naddresses:\n  - address: {address}/24\n"
    );
    let config = MachineConfig::new(authority)
        .hostname(name)
        .extra_name(EXTRA_NAME)
        .document(&links)
        .document(NAMES);
    let card = format!("virtio-net-pci,netdev=cable,mac=52:54:00:77:00:0{last},romfile=");
    let cable = format!("socket,id=cable,{cable}");
    let wired = move |spec: VmSpec| {
        ["-netdev", &cable, "-device", &card]
            .into_iter()
            .fold(spec, |spec, argument| spec.extra_argument(argument))
    };
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .config(config.to_yaml(), authority.with_role(Role::Admin)?)
        .spec(wired))
}

async fn one_node_answers_for_another(scratch: Scratch) -> Outcome {
    let authority = Identity::administrator()?;
    let port: PortLease = lease_port()?;
    let end = |what: &str| format!("{what}=127.0.0.1:{}", port.port());
    let one = plan(&scratch, &authority, ("one", ONE, 1), &end("listen"))?;
    let other = plan(&scratch, &authority, ("other", OTHER, 2), &end("connect"))?;
    let one = one.start()?;
    let other = other.start()?;
    for node in [&one, &other] {
        node.wait_for_api(PATIENCE).await?;
        node.wait_until_ready(PATIENCE).await?;
    }
    one.wait_until("it reaches the other one", PATIENCE, async || {
        hostname(&one, &[("node", OTHER)]).await.map(drop)
    })
    .await?;

    a_call_for_one_is_answered_by_that_one(&one).await?;
    a_stream_is_the_one_of_the_other(&one).await?;
    errors_are_those_of_the_other(&one).await?;
    services_without_metadata_are_those_of_the_other(&one).await?;
    who_cannot_be_reached_or_proved_is_refused(&one).await?;
    calls_for_several_become_one(&one).await?;
    streams_of_several_become_one(&one).await?;
    roles_are_those_of_who_called(&one, &other).await?;
    by_instarctl(&one, &scratch).await
}

async fn hostname(node: &Node, keys: Keys<'_>) -> anyhow::Result<Vec<(String, Metadata)>> {
    let reply = node.machine().await?.hostname(with((), keys)?).await?;
    let rows = reply.into_inner().messages.into_iter();
    Ok(rows
        .map(|row| (row.hostname, row.metadata.unwrap_or_default()))
        .collect())
}

async fn a_call_for_one_is_answered_by_that_one(node: &Node) -> Outcome {
    for (keys, name) in [
        (&[("node", OTHER)][..], "other"),
        (&[("node", ONE)], "one"),
        (&[], "one"),
        // By names that are looked up.
        (&[("node", "other")], "other"),
        (&[("node", "OTHER")], "other"),
        (&[("node", EXTRA_NAME)], "one"),
        // It was passed on before.
        (&[("node", OTHER), ("proxyfrom", "10.77.0.3")], "one"),
    ] {
        let rows = hostname(node, keys).await?;
        ensure!(rows == [(name.to_owned(), Metadata::default())], "{rows:?}");
    }
    Ok(())
}

/// Who asks for something of the other one.
const TO_OTHER: Keys<'_> = &[("node", OTHER)];

fn file(path: &str) -> ReadRequest {
    ReadRequest {
        path: path.to_owned(),
    }
}

async fn a_stream_is_the_one_of_the_other(node: &Node) -> Outcome {
    let path = "/proc/sys/kernel/random/boot_id";
    let mut machine = node.machine().await?;
    let own = machine.read(file(path)).await?;
    let theirs = machine.read(with(file(path), TO_OTHER)?).await?;
    let (own, theirs) = (
        all(own.into_inner()).await?,
        all(theirs.into_inner()).await?,
    );
    ensure!(
        own.len() == theirs.len() && own != theirs,
        "{own:?} {theirs:?}"
    );
    ensure!(
        theirs.iter().all(|data| data.metadata.is_none()),
        "{theirs:?}"
    );
    Ok(())
}

async fn errors_are_those_of_the_other(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let missing = with(file("/no/such/file"), TO_OTHER)?;
    let missing = match machine.read(missing).await {
        Ok(stream) => all(stream.into_inner()).await.err(),
        Err(status) => Some(status),
    };
    let missing = missing.context("there is such a file")?;
    ensure!(missing.code() == Code::NotFound, "{missing}");
    let id = "apid".to_owned();
    let restart = with(ServiceRestartRequest { id }, TO_OTHER)?;
    let refused = machine.service_restart(restart).await.err();
    let refused = refused.context("apid was restarted")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
    Ok(())
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

/// Whom nobody has, what is neither address nor name, and names that lead to nodes whose certificates do not have them.
async fn who_cannot_be_reached_or_proved_is_refused(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    for (name, code, words) in [
        (NOBODY, Code::Unavailable, NOBODY),
        ("10.77.0.2:50000", Code::InvalidArgument, "without a port"),
        ("other:50000", Code::InvalidArgument, "without a port"),
        ("nobody.invalid", Code::Unavailable, "no address"),
        ("stranger.example", Code::Unavailable, "certSANs"),
        ("not-mine.example", Code::Unavailable, "certSANs"),
    ] {
        let refused = machine.hostname(with((), &[("node", name)])?).await;
        let refused = refused.err().with_context(|| format!("{name} answered"))?;
        println!("{name}: {refused}");
        ensure!(
            refused.code() == code && refused.message().contains(words),
            "{name}: {refused}"
        );
    }
    Ok(())
}

async fn calls_for_several_become_one(node: &Node) -> Outcome {
    let names = [
        OTHER,
        ONE,
        NOBODY,
        "10.77.0.2:50000",
        "other",
        EXTRA_NAME,
        "nobody.invalid",
    ];
    let keys = names.map(|name| ("nodes", name));
    let rows = hostname(node, &keys).await?;
    println!("{rows:#?}");
    let who: Vec<(&str, &str)> = rows
        .iter()
        .map(|(name, metadata)| (metadata.hostname.as_str(), name.as_str()))
        .collect();
    ensure!(
        who == [
            (OTHER, "other"),
            (ONE, "one"),
            (NOBODY, ""),
            ("10.77.0.2:50000", ""),
            ("other", "other"),
            (EXTRA_NAME, "one"),
            ("nobody.invalid", "")
        ],
        "{who:?}"
    );
    let codes: Vec<Option<i32>> = rows
        .iter()
        .map(|(_, metadata)| metadata.status.as_ref().map(|status| status.code))
        .collect();
    ensure!(
        codes == [None, None, Some(14), Some(3), None, None, Some(14)],
        "{codes:?}"
    );
    for place in [2, 6] {
        let (_, metadata) = &rows[place];
        ensure!(metadata.error.contains(names[place]), "{metadata:?}");
    }

    // What one of them refuses is its element.
    let restart = ServiceRestartRequest {
        id: "apid".to_owned(),
    };
    let mut machine = node.machine().await?;
    let both: Keys<'_> = &[("nodes", ONE), ("nodes", OTHER)];
    let reply = machine.service_restart(with(restart, both)?).await?;
    for row in reply.into_inner().messages {
        let status = row.metadata.unwrap_or_default().status;
        let code = status.map(|status| status.code);
        ensure!(code == Some(Code::FailedPrecondition.into()), "{code:?}");
    }
    Ok(())
}

async fn streams_of_several_become_one(node: &Node) -> Outcome {
    let logs = LogsRequest {
        id: "machined".to_owned(),
        tail_lines: -1,
        ..LogsRequest::default()
    };
    let keys = [OTHER, ONE, NOBODY].map(|name| ("nodes", name));
    let mut machine = node.machine().await?;
    let told = all(machine.logs(with(logs, &keys)?).await?.into_inner()).await?;
    let of = |name: &str| {
        let parts = told.iter().filter(|data| {
            let metadata = data.metadata.as_ref();
            metadata.is_some_and(|metadata| metadata.hostname == name)
        });
        parts.cloned().collect::<Vec<Data>>()
    };
    for name in [OTHER, ONE] {
        let text: Vec<u8> = of(name).into_iter().flat_map(|data| data.bytes).collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        ensure!(text.contains("booted v0.1.0"), "{name}: {text}");
    }
    let away = of(NOBODY);
    let error = away.first().and_then(|data| data.metadata.clone());
    let error = error.unwrap_or_default();
    ensure!(
        away.len() == 1 && error.status.is_some_and(|status| status.code == 14),
        "{away:?}"
    );
    ensure!(
        told.len() == of(ONE).len() + of(OTHER).len() + 1,
        "somebody else spoke"
    );
    Ok(())
}

/// The code with which this identity's call of Read ends; none when it is answered.
async fn read_as(node: &Node, who: &Identity, keys: Keys<'_>) -> anyhow::Result<Option<Code>> {
    let mut machine = MachineServiceClient::new(node.channel_as(who).await?);
    let read = ReadRequest {
        path: "/etc/os-release".to_owned(),
    };
    let answer = match machine.read(with(read, keys)?).await {
        Ok(stream) => all(stream.into_inner()).await.map(drop),
        Err(status) => Err(status),
    };
    Ok(answer.err().map(|status| status.code()))
}

async fn roles_are_those_of_who_called(one: &Node, other: &Node) -> Outcome {
    let admin = one.identity();
    let reader = admin.with_role(Role::Reader)?;
    let impersonator = admin.with_role(Role::Impersonator)?;
    let denied = Some(Code::PermissionDenied);
    let as_admin = ("talos-role", "os:admin");
    let as_reader = ("talos-role", "os:reader");
    let on = ("node", OTHER);
    for (who, keys, expected) in [
        // Through the one to the other.
        (admin, &[on][..], None),
        (&reader, &[on], denied),
        (&reader, &[on, as_admin], denied),
        (admin, &[on, as_reader], None),
        (&impersonator, &[on], denied),
        (&impersonator, &[on, as_admin], None),
        (&impersonator, &[on, as_reader], denied),
        // There at once.
        (&reader, &[as_admin], denied),
        (&impersonator, &[], denied),
        (&impersonator, &[as_admin], None),
        (&impersonator, &[as_reader], denied),
        (&impersonator, &[as_reader, as_admin], None),
        (&impersonator, &[("talos-role", "os:impersonator")], denied),
    ] {
        let called = if keys.contains(&on) { one } else { other };
        let ended = read_as(called, who, keys).await?;
        ensure!(ended == expected, "{keys:?}: {ended:?}, not {expected:?}");
    }
    // Somebody of another authority is nobody, whatever he claims.
    let stranger = Identity::administrator()?.with_role(Role::Impersonator)?;
    let ended = read_as(other, &stranger.trusting(admin), &[as_admin]).await;
    ensure!(
        !matches!(ended, Ok(None | Some(Code::PermissionDenied))),
        "the handshake went well: {ended:?}"
    );
    Ok(())
}

async fn by_instarctl(node: &Node, scratch: &Scratch) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let both = format!("{ONE},{OTHER}");
    let said = client.run(&["--nodes", &both, "version"]).await?;
    ensure!(
        said.code == Some(0) && said.output.contains(ONE) && said.output.contains(OTHER),
        "{said:#?}"
    );
    for name in [OTHER, "other"] {
        let said = client.run(&["--nodes", name, "get", "hostname"]).await?;
        ensure!(
            said.code == Some(0) && said.output.contains("other"),
            "{said:#?}"
        );
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
