//! User volumes: made, given to whom they are for, and there again after every kind of start.

use anyhow::ensure;
use instar_pki::Role;
use instar_tests::{
    Ending, Greeter, ImageUnderTest, Node, OciImage, Outcome, Registry, Release, Scratch, Talosctl,
    Test, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;

/// Runs as somebody, and writes.
const WRITER: &str = "writer";
const WRITER_PORT: u16 = 8083;
/// The same volume, without leave to write.
const READER: &str = "reader";
const READER_PORT: u16 = 8084;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        outlive_upgrades_and_reboots,
        of_other_types_are_waited_for_and_said_so,
    ]
}

fn directory(name: &str) -> String {
    format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: {name}\nvolumeType: directory\n")
}

fn mounting(volume: &str, options: &str) -> String {
    format!(
        "mounts:\n  - userVolume: {{name: {volume}, destination: /data, options: [{options}]}}\n"
    )
}

async fn outlive_upgrades_and_reboots(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let host = registry.host_for_guest();
    let second = OciImage::read(&ImageUnderTest::second()?.installer())?;
    second.push(&registry, "instar/installer", "v0.2.0")?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(WRITER_PORT)
        .forward(READER_PORT)
        .configure(move |config| {
            let image = format!("{host}/greeter:v1");
            let mut writes = mounting("data", "rw");
            writes.push_str("runAs: {uid: 1234, gid: 1234}\n");
            config
                .install_disk("/dev/vda")
                .registry(&host)
                .document(&directory("data"))
                .greeter_at(WRITER, &image, WRITER_PORT, &writes)
                .greeter_at(READER, &image, READER_PORT, &mounting("data", ""))
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let writer = Greeter::at(&node, WRITER_PORT)?;
    let reader = Greeter::at(&node, READER_PORT)?;

    writer.greets()?;
    writer.get("/write/data/kept")?;
    ensure!(node.read("/var/mnt/data/kept").await? == "written by greeter\n");
    ensure!(
        reader.get("/write/data/kept").is_err(),
        "a mount that nobody asked to write to can be written to"
    );
    let kept = async || {
        let owners = (writer.get("/owner/data")?, writer.get("/owner/data/kept")?);
        ensure!(
            owners == ("1234:1234".to_owned(), "1234:1234".to_owned()),
            "it belongs to {owners:?}"
        );
        ensure!(reader.get("/read/data/kept")? == "written by greeter\n");
        writer.get("/write/data/again")
    };
    kept().await?;

    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    kept().await?;

    // By who may reboot it and not read its files: talosctl is content with less then.
    let kernel = node.kernel_boot_id().await?;
    let operator = node.identity().with_role(Role::Operator)?;
    let operator = Talosctl::by(&node, &operator, Release::V1_13).await?;
    let said = operator.run("reboot -m powercycle").await;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.kernel_boot_id().await? != kernel);
    node.wait_until("it is there after the reboot", PATIENCE, kept)
        .await?;
    Ok(())
}

/// No disk, no registry: it does not come that far.
async fn of_other_types_are_waited_for_and_said_so(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(|config| {
            config
                .document("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: large\n")
                .container(
                    WRITER,
                    "nowhere.example/greeter:v1",
                    &mounting("large", "rw"),
                )
        })
        .boot()
        .await?;
    node.wait_for_line("UserVolumeConfig.volumeType: volumes of the type", PATIENCE)?;
    node.wait_until("it says what it waits for", PATIENCE, async || {
        let events = node.service(WRITER).await?.events.unwrap_or_default();
        ensure!(
            events.events.iter().any(|event| event.state == "Waiting"
                && event.msg.contains("user volume large")
                && event.msg.contains("partition")),
            "{events:#?}"
        );
        Ok(())
    })
    .await
}
