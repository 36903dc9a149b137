//! A node follows the publisher of its kubelet: by a pattern, and by a list that a key has signed.

use anyhow::ensure;
use instar_tests::{Node, Outcome, Scratch, Test, chapters, extension_file, sha256_digest, tests};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::kept::Kept;
use crate::operator::it_is_told;
use crate::publisher::Publisher;
use crate::shown::{it_joins_and_runs_pods, wait_until_ready};

pub(crate) fn tests() -> Vec<Test> {
    tests![follows_a_publisher_by_a_signed_list]
}

const PATTERN: &str = "kubernetes-v1.36.@v-%a.raw";
/// Files that the pattern matches, and files that it does not: another series, and another architecture.
const FIRST: &str = "kubernetes-v1.36.3-x86-64.raw";
const SECOND: &str = "kubernetes-v1.36.10-x86-64.raw";
const THIRD: &str = "kubernetes-v1.36.11-x86-64.raw";
const OTHERS: [&str; 2] = [
    "kubernetes-v1.37.0-x86-64.raw",
    "kubernetes-v1.36.12-arm64.raw",
];

async fn follows_a_publisher_by_a_signed_list(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let publisher = Publisher::start()?;
    let first = extension_file("kubernetes")?;
    let second = another_file(&first);
    publish_first(&publisher, &first)?;
    let followed = [publisher.followed("kubernetes", PATTERN)];
    let node = cluster.plan_node_with(&scratch, &followed)?.boot().await?;
    chapters![
        the_newest_file_that_matches_runs(&node, &cluster, &scratch, &first),
        another_keys_list_changes_nothing(&node, &cluster, &publisher, &scratch),
        a_newer_file_takes_its_place(&node, &cluster, &publisher, &scratch, &second),
    ]
    .await
}

/// A squashfs with some bytes behind it is the same tree, and another file.
fn another_file(file: &[u8]) -> Vec<u8> {
    [file, &[0; 4096]].concat()
}

fn publish_first(publisher: &Publisher, first: &[u8]) -> Outcome {
    publisher.publish_list(&[
        (FIRST, first),
        (OTHERS[0], b"another series"),
        (OTHERS[1], b"another architecture"),
    ])
}

async fn the_newest_file_that_matches_runs(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
    first: &[u8],
) -> Outcome {
    it_joins_and_runs_pods(node, cluster).await?;
    it_is_told(node, scratch, "extensions", &sha256_digest(first)).await
}

/// Somebody else's list names a file that nobody wants.
async fn another_keys_list_changes_nothing(
    node: &Node,
    cluster: &Cluster,
    publisher: &Publisher,
    scratch: &Scratch,
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    let list = format!("{}  {THIRD}\n", "a".repeat(64));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    publisher.offer(&list, &key.sign(list.as_bytes())?);
    it_is_told(node, scratch, "kubernetes", "is not signed by the key").await?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    wait_until_ready(node, cluster).await
}

/// It is newer by its number, not by its letters. The pods run on.
async fn a_newer_file_takes_its_place(
    node: &Node,
    cluster: &Cluster,
    publisher: &Publisher,
    scratch: &Scratch,
    second: &[u8],
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    publisher.publish_list(&[
        (FIRST, b"the old one, which nobody fetches"),
        (SECOND, second),
    ])?;
    it_is_told(node, scratch, "extensions", &sha256_digest(second)).await?;
    let words = format!("the extension kubernetes comes from {SECOND}");
    node.wait_for_line(&words, PATIENCE)?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    wait_until_ready(node, cluster).await
}
