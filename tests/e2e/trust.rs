//! Permissions on a booted node: every method by every role, and by callers that must not be let in at all.
//!
//! The calls carry a message that cannot be decoded. The node checks permission before it decodes the message, and does
//! nothing without a readable one: even `Reset` can be called.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use instar_pki::{CLOCK_TOLERANCE, Role};
use instar_tests::{
    Answer, Calls, End, Identity, ImageUnderTest, MachineConfig, Node, Outcome, Scratch, Test,
    TlsClient, chapters, tests,
};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use rcgen::ExtendedKeyUsagePurpose::{self, ClientAuth, ServerAuth};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, KeyUsagePurpose};
use rustls::version::{TLS12, TLS13};
use rustls::{ProtocolVersion, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::Code;

use crate::PATIENCE;

/// The permission table: a line for each method that others than administrators may call.
const EXPECTED: &str = include_str!("../../apid/tests/permissions.txt");
/// The same for methods that no version here serves. The interface opens them to these roles, and a role may come to be
/// of use by them alone.
const NOT_SERVED: &str = "
/machine.MachineService/Unheard a
";
/// The first byte of a varint that does not end: no message of any kind.
const UNREADABLE: &[u8] = &[0xff];

const HOUR: Duration = Duration::from_secs(3600);
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

pub(crate) fn tests() -> Vec<Test> {
    tests![every_method_is_open_to_its_roles_and_to_nobody_else]
}

async fn every_method_is_open_to_its_roles_and_to_nobody_else(scratch: Scratch) -> Outcome {
    let removed = Identity::administrator()?;
    let accepted = removed.with_role(Role::Admin)?;
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let plan = plan.configure(move |config| config.accepting(&accepted));
    let node = plan.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let before = Running::of(&node).await?;
    chapters![
        roles_may_call_what_is_open_to_them(&node),
        certificates_that_do_not_count_are_not_answered(&node),
        a_removed_authority_does_not_count(&node, removed),
        nothing_was_started_anew(&node, &before),
    ]
    .await
}

async fn roles_may_call_what_is_open_to_them(node: &Node) -> Outcome {
    let table = Table::read()?;
    for bearer in bearers() {
        may_call_what_is_open_to_it(node, &bearer, &table).await?;
    }
    Ok(())
}

async fn nothing_was_started_anew(node: &Node, before: &Running) -> Outcome {
    let after = Running::of(node).await?;
    ensure!(*before == after, "{before:?} became {after:?}");
    Ok(())
}

/// Kernel boot, generation and apid's process; no call may restart them.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    kernel: String,
    generation: String,
    apid: u32,
}

impl Running {
    async fn of(node: &Node) -> Result<Self> {
        Ok(Self {
            kernel: node.kernel_boot_id().await?,
            generation: node.boot_id().await?,
            apid: node.service_pid("apid").await?,
        })
    }
}

/// Every method, with the letters of the roles that may call it.
struct Table(BTreeMap<String, String>);

impl Table {
    fn read() -> Result<Self> {
        let mut table = BTreeMap::new();
        for method in described_methods()? {
            table.insert(method, "a".to_owned());
        }
        let lines = EXPECTED.lines().chain(NOT_SERVED.lines());
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (method, letters) = line.split_once(' ').context("a line of one word")?;
            table.insert(method.to_owned(), letters.to_owned());
        }
        // It is served on a port of its own alone, as `worker_certificates` shows.
        table.remove(instar_api::CERTIFICATE_METHOD);
        ensure!(table.len() > 60, "{} methods", table.len());
        Ok(Self(table))
    }

    fn methods(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

/// Descriptions of the node's services.
const DESCRIPTIONS: [&[u8]; 4] = [
    instar_api::FILE_DESCRIPTOR_SET,
    tonic_health::pb::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
];

/// Returns every method of every service that the node has a description of.
fn described_methods() -> Result<Vec<String>> {
    let mut methods = Vec::new();
    for encoded in DESCRIPTIONS {
        for file in FileDescriptorSet::decode(encoded)?.file {
            for service in &file.service {
                let path = format!("/{}.{}", file.package(), service.name());
                let names = service.method.iter().map(|method| method.name());
                methods.extend(names.map(|name| format!("{path}/{name}")));
            }
        }
    }
    Ok(methods)
}

/// Returns the node's methods that the reader role may not call.
pub(crate) fn methods_that_change() -> Result<Vec<String>> {
    let Table(table) = Table::read()?;
    let closed = table.into_iter().filter(|(_, who)| !who.contains('r'));
    Ok(closed.map(|(method, _)| method).collect())
}

/// A bearer of a certificate of the node's authority.
struct Bearer {
    /// The bearer's letter in the table; none for a bearer without any permission.
    letter: Option<char>,
    roles: Vec<Role>,
}

const BEARERS: [(char, Role); 8] = [
    ('a', Role::Admin),
    ('o', Role::Operator),
    ('r', Role::Reader),
    ('e', Role::EtcdBackup),
    ('i', Role::ImageVerifier),
    ('m', Role::MetaWriter),
    ('u', Role::Upgrader),
    ('p', Role::Impersonator),
];

fn bearers() -> Vec<Bearer> {
    let known = BEARERS.map(|(letter, role)| (Some(letter), vec![role]));
    let others = [(None, vec![]), (None, vec![Role::from("os:Admin")])];
    let all = known.into_iter().chain(others);
    all.map(|(letter, roles)| Bearer { letter, roles })
        .collect()
}

async fn may_call_what_is_open_to_it(node: &Node, bearer: &Bearer, table: &Table) -> Outcome {
    let who = format!("{:?}", bearer.roles);
    let client = TlsClient::of(&node.identity().with_roles(&bearer.roles)?);
    let calls = call_all(node, &who, &client, &table.methods()).await?;
    let mut seen = HashMap::<_, usize>::new();
    for ((method, letters), answer) in table.0.iter().zip(&calls.answers) {
        let may = bearer.letter.is_some_and(|own| letters.contains(own));
        let answer = answer
            .as_ref()
            .map_err(|why| anyhow!("{method} by {who} is not answered: {why}, {:?}", calls.end))?;
        let is_right = is_right(method, may, answer);
        ensure!(is_right, "{method} by {who}, who may: {may}: {answer:?}");
        *seen.entry((may, answer.status)).or_default() += 1;
    }
    println!("{who}: methods that it may call, or not, by status: {seen:?}");
    Ok(())
}

/// Calls all of these methods at once, on one new connection.
async fn call_all(node: &Node, who: &str, client: &TlsClient, methods: &[String]) -> Result<Calls> {
    let stream = client.connect(&node.endpoint()?).await;
    let stream = stream.with_context(|| format!("{who} is not let in"))?;
    let calls = Calls::of(stream, methods, UNREADABLE).await;
    calls.with_context(|| who.to_owned())
}

/// Whether this answer of a method is right for a caller that may, or may not, call it.
fn is_right(method: &str, may: bool, answer: &Answer) -> bool {
    match (may, answer.status) {
        (false, Some(Code::PermissionDenied)) => answer.says == "not authorized",
        (false, _) => false,
        // machined failed to decode the message and did nothing, or it has no such method.
        (true, Some(Code::Internal)) => answer.says.contains("decode"),
        // EtcdRecover says what is missing before it reads its stream.
        (true, Some(Code::Unimplemented)) => {
            NOT_SERVED.contains(&format!("\n{method} "))
                || method.ends_with("/EtcdRecover") && answer.says.contains("no%20Kubernetes")
        }
        // Reflection is a stream of questions, and a question that cannot be decoded ends it.
        (true, Some(Code::Ok)) => {
            method.ends_with("/ServerReflectionInfo") && answer.body.is_empty()
        }
        (true, _) => false,
    }
}

/// Each kind has a control: a caller that differs only in the point that is judged, and is answered.
async fn certificates_that_do_not_count_are_not_answered(node: &Node) -> Outcome {
    let administrator = node.identity();
    let methods = Table::read()?.methods();
    are_answered(node, "an administrator", administrator, &methods).await?;
    let plain = with_usages(administrator, &[ClientAuth])?;
    are_answered(node, "a certificate for clients", &plain, &methods).await?;
    let strangers = [
        out_of_their_time(administrator)?,
        of_other_authorities(administrator)?,
        of_other_purposes(administrator)?,
    ];
    for (what, stranger) in strangers.into_iter().flatten() {
        are_turned_away(node, what, &TlsClient::of(&stranger), &methods).await?;
    }
    let nobody = TlsClient::of(administrator).without_certificate();
    are_turned_away(node, "no certificate", &nobody, &methods).await
}

/// A caller that must not be let in: the fault of its certificate, and its identity.
type Stranger = (&'static str, Identity);

fn out_of_their_time(administrator: &Identity) -> Result<Vec<Stranger>> {
    let now = SystemTime::now();
    // A certificate is valid from a while before its first day, for clocks that are apart.
    let (before, after) = (now - 25 * HOUR, now + CLOCK_TOLERANCE + HOUR);
    Ok(vec![
        ("expired", administrator.for_a_day_from(before)?),
        ("not yet valid", administrator.for_a_day_from(after)?),
    ])
}

fn of_other_authorities(administrator: &Identity) -> Result<Vec<Stranger>> {
    let of_this_name = Identity::administrator()?;
    let of_another_name = Identity::administrator_by_p256()?;
    Ok(vec![
        (
            "another authority's of this name",
            of_this_name.trusting(administrator),
        ),
        (
            "another authority's of another name",
            of_another_name.trusting(administrator),
        ),
    ])
}

fn of_other_purposes(administrator: &Identity) -> Result<Vec<Stranger>> {
    let purposes = [
        ("for servers only", &[ServerAuth][..]),
        ("for clients and servers", &[ClientAuth, ServerAuth]),
        ("for nothing in particular", &[]),
    ];
    purposes
        .into_iter()
        .map(|(what, usages)| Ok((what, with_usages(administrator, usages)?)))
        .collect()
}

async fn a_removed_authority_does_not_count(node: &Node, removed: Identity) -> Outcome {
    let administrator = node.identity();
    let removed = removed.trusting(administrator);
    let methods = Table::read()?.methods();
    let what = "a removed authority's";
    are_answered(node, what, &removed, &methods).await?;
    remove_its_authority(node, &removed).await?;
    are_turned_away(node, what, &TlsClient::of(&removed), &methods).await?;
    are_answered(node, "an administrator still", administrator, &methods).await
}

/// Returns an administrator whose certificate is for these purposes.
fn with_usages(identity: &Identity, usages: &[ExtendedKeyUsagePurpose]) -> Result<Identity> {
    let authority_key = KeyPair::from_pem(&identity.authority_key())?;
    let issuer = Issuer::from_ca_cert_pem(&identity.authority_certificate(), authority_key)?;
    let mut wish = CertificateParams::default();
    // A new name, without rcgen's default common name.
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, Role::Admin.as_str());
    wish.distinguished_name = subject;
    wish.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wish.extended_key_usages = usages.to_vec();
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let certificate = wish.signed_by(&key, &issuer)?;
    identity.showing(certificate.pem(), key.serialize_pem())
}

/// Removes this authority from the accepted ones, and waits until the node refuses its clients.
async fn remove_its_authority(node: &Node, removed: &Identity) -> Outcome {
    let without = MachineConfig::new(node.identity()).hostname("node");
    node.apply_as(node.identity(), without.to_yaml()).await?;
    // TLS 1.2 tells a refused client in the handshake.
    let in_handshake = TlsClient::of(removed).in_version(&TLS12);
    node.wait_until("its clients are turned away", PATIENCE, async || {
        let stream = in_handshake.connect(&node.endpoint()?).await;
        ensure!(stream.is_err(), "they are let in");
        Ok(())
    })
    .await
}

/// Checks that all methods answer, in each version of TLS.
async fn are_answered(node: &Node, what: &str, who: &Identity, methods: &[String]) -> Outcome {
    for version in VERSIONS {
        let what = format!("{what}, {:?}", version.version);
        let client = TlsClient::of(who).in_version(version);
        let calls = call_all(node, &what, &client, methods).await?;
        let answered = calls.answers.iter().flatten().count();
        println!("{what}: {answered} answers");
        let missing = calls.answers.iter().find(|answer| answer.is_err());
        ensure!(missing.is_none(), "{what}: {missing:?}, {:?}", calls.end);
    }
    Ok(())
}

/// Checks that no method answers and that the node ends the connection without a byte inside it, in each version of
/// TLS.
async fn are_turned_away(
    node: &Node,
    what: &str,
    client: &TlsClient,
    methods: &[String],
) -> Outcome {
    for version in VERSIONS {
        let what = format!("{what}, {:?}", version.version);
        let client = client.in_version(version);
        let turned_away = match client.connect(&node.endpoint()?).await {
            Err(error) => in_the_handshake(&error),
            Ok(stream) if version.version == ProtocolVersion::TLSv1_3 => {
                before_any_answer(stream, methods).await
            }
            Ok(_) => bail!("{what}: let in by the handshake"),
        };
        println!("{what}: {}", turned_away.context(what.clone())?);
    }
    Ok(())
}

fn in_the_handshake(error: &io::Error) -> Result<String> {
    let end = End::of(error).with_context(|| error.to_string())?;
    // The client has nothing in flight, which could make it lose the alert.
    ensure!(matches!(end, End::Alert(_)), "{end}");
    Ok(format!("in the handshake, {end}"))
}

async fn before_any_answer(stream: TlsStream<TcpStream>, methods: &[String]) -> Result<String> {
    let calls = Calls::of(stream, methods, UNREADABLE).await?;
    let (answered, heard) = (calls.answers.iter().flatten().count(), calls.heard);
    ensure!(answered == 0, "{answered} answers, {heard} bytes");
    ensure!(heard == 0, "{heard} bytes");
    let end = calls.end.context("the node did not end it")?;
    Ok(format!("before any answer, {end}"))
}
