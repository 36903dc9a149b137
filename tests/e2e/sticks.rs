//! A person with a USB stick before a machine: all that the machine says is read from its screen, and keys are pressed on its keyboard.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    INSTALLER, ImageUnderTest, Instarctl, Node, NodePlan, OciImage, Outcome, Registry, Scratch,
    Test, bundle, chapters, copy_from_fat, fat_stick, place_for_usb_sticks, plug_into_usb,
    pull_out, rootfs_of_version, stick, tests,
};
use serde_json::json;

use crate::PATIENCE;
use crate::console::{screen, with_screen};

/// The version on the stick.
const NEXT: &str = "v0.2.0";
/// The directory that asks for support data.
const SUPPORT: &str = "instar-support";
/// The document of the config with the rights of a stick.
const ALLOWED: &str = "apiVersion: instar.dev/v1alpha1\nkind: BundleConfig\naskAt: [screen]\nupgrade: true\nsupport: true\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_person_with_a_stick_needs_nothing_but_the_screen]
}

/// A machine, and a stick with its next version, which nobody has signed.
struct Story {
    node: Node,
    next: PathBuf,
    scratch: Scratch,
}

async fn a_person_with_a_stick_needs_nothing_but_the_screen(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        a_wrong_digit_refuses_the_bundle(&story),
        a_stick_that_is_pulled_out_early_leaves_nothing(&story),
        support_data_are_written_onto_a_stick(&story),
        the_network_card_is_pulled_out(&story),
        the_right_digits_upgrade_the_machine(&story),
        the_same_stick_does_nothing_the_second_time(&story),
    ]
    .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let image = ImageUnderTest::for_servers()?;
        let next = stick_with_next_version(scratch, &image).await?;
        let plan = Node::plan(scratch, &image).blank_disk()?;
        let plan = plan.configure(|config| config.install_disk("/dev/vda").document(ALLOWED));
        let node = with_screen(with_usb(plan), "").boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            node,
            next,
            scratch: scratch.clone(),
        })
    }

    fn plug_in(&self, name: &str, stick: &Path) -> Outcome {
        plug_into_usb(self.node.vm(), name, stick)
    }

    fn pull_out(&self, name: &str) -> Outcome {
        pull_out(self.node.vm(), name).map(drop)
    }

    /// Waits until the screen shows this text, on however many lines.
    async fn shows(&self, text: &str) -> Outcome {
        let shown = async || {
            let screen = screen(&self.node)?;
            let words: Vec<&str> = screen.split_whitespace().collect();
            ensure!(words.join(" ").contains(text), "{screen}");
            Ok(())
        };
        let what = format!("the screen shows {text:?}");
        self.node.wait_until(&what, PATIENCE, shown).await
    }

    /// Returns the digits that the screen asks for.
    async fn digits(&self) -> Result<String> {
        let asked = async || {
            let screen = screen(&self.node)?;
            let mut lines = screen.lines().map(str::trim);
            let found = lines.find_map(digits);
            found.with_context(|| format!("no digits: {screen}"))
        };
        let what = "the screen asks for digits";
        self.node.wait_until(what, PATIENCE, asked).await
    }

    fn press(&self, digit: u8) -> Outcome {
        let key = format!("sendkey {}", char::from(digit));
        self.node.vm().qmp().human(&key)?;
        Ok(())
    }
}

/// The digits of a line that has nothing else, in two groups of three.
pub(crate) fn digits(line: &str) -> Option<String> {
    let (one, other) = line.split_once(' ')?;
    let is_group = |text: &str| text.len() == 3 && text.bytes().all(|it| it.is_ascii_digit());
    (is_group(one) && is_group(other)).then(|| format!("{one}{other}"))
}

fn with_usb(plan: NodePlan) -> NodePlan {
    plan.spec(|spec| {
        let words = place_for_usb_sticks().into_iter();
        words.fold(spec.network_card_in_port(), |spec, word| {
            spec.extra_argument(word)
        })
    })
}

async fn stick_with_next_version(scratch: &Scratch, image: &ImageUnderTest) -> Result<PathBuf> {
    let registry = Registry::start(scratch)?;
    let rootfs = rootfs_of_version(scratch, image, NEXT)?;
    // With the same kernel, its upgrade needs no reboot.
    let installer = OciImage::read(&image.installer())?.first_layer_alone();
    let installer = installer.installing(NEXT, &rootfs)?;
    installer.push(&registry, INSTALLER, NEXT)?;
    let name = format!("{INSTALLER}:{NEXT}");
    let file = bundle(&registry, scratch, "next.bundle", &[&name]).await?;
    stick(scratch, "next.img", "INSTAR-BUNDLE", &file)
}

async fn a_wrong_digit_refuses_the_bundle(story: &Story) -> Outcome {
    story.plug_in("wrong", &story.next)?;
    let digits = story.digits().await?;
    story.shows("(version v0.2.0)").await?;
    story.shows("nor approved. The bundle's digest is").await?;
    let first = *digits.as_bytes().first().context("no digit")?;
    story.press(if first == b'9' { b'0' } else { first + 1 })?;
    story.shows("a wrong digit was typed").await?;
    story.shows("The stick can be pulled out.").await?;
    println!("{}", screen(&story.node)?);
    story.pull_out("wrong")
}

async fn a_stick_that_is_pulled_out_early_leaves_nothing(story: &Story) -> Outcome {
    story.plug_in("early", &story.next)?;
    story.digits().await?;
    story.pull_out("early")?;
    let words = "the stick was pulled out too early";
    story.node.wait_for_line(words, PATIENCE)?;
    story.shows("pulled out too early").await?;
    let client = Instarctl::of(&story.node, &story.scratch)?;
    let images = client.run(&["get", "images"]).await?;
    ensure!(!images.output.contains(INSTALLER), "{images:?}");
    Ok(())
}

async fn support_data_are_written_onto_a_stick(story: &Story) -> Outcome {
    let stick = fat_stick(&story.scratch, "support.img", "INSTAR-BNDL", SUPPORT)?;
    story.plug_in("support", &stick)?;
    story.shows("Support data are on the stick").await?;
    story.shows("The stick can be pulled out.").await?;
    story.pull_out("support")?;
    let host = story.scratch.below("from-the-stick")?;
    copy_from_fat(&stick, SUPPORT, host.path())?;
    let archive = only_file(&host.join(SUPPORT))?;
    let text = content(&archive)?;
    ensure!(text.contains("machined: booted v0.1.0"), "no kernel log");
    ensure!(text.contains("MachineStatuses.runtime.talos.dev"));
    ensure!(!text.contains("PRIVATE KEY"), "there is a secret");
    Ok(())
}

fn only_file(directory: &Path) -> Result<PathBuf> {
    let mut files = std::fs::read_dir(directory)?;
    let file = files.next().context("nothing was written")??.path();
    let name = file.to_string_lossy().into_owned();
    ensure!(
        name.ends_with(".tar.gz") && files.next().is_none(),
        "{name}"
    );
    Ok(file)
}

/// The names and the content of all files of an archive.
fn content(archive: &Path) -> Result<String> {
    let unpacked = Command::new("tar").arg("-xvOzf").arg(archive).output()?;
    ensure!(unpacked.status.success(), "{archive:?} is not whole");
    let (names, content) = (&unpacked.stderr, &unpacked.stdout);
    let text = [names.as_slice(), content.as_slice()].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn the_network_card_is_pulled_out(story: &Story) -> Outcome {
    let vm = story.node.vm();
    vm.qmp().execute("device_del", json!({"id": "card"}))?;
    let gone = async || {
        let path = json!({"path": "/machine/peripheral"});
        let devices = vm.qmp().execute("qom-list", path)?.to_string();
        ensure!(!devices.contains("\"card\""), "{devices}");
        Ok(())
    };
    story
        .node
        .wait_until("the card is gone", PATIENCE, gone)
        .await
}

async fn the_right_digits_upgrade_the_machine(story: &Story) -> Outcome {
    story.plug_in("next", &story.next)?;
    let digits = story.digits().await?;
    story
        .shows("After that, this machine is upgraded to v0.2.0")
        .await?;
    digits.bytes().try_for_each(|digit| story.press(digit))?;
    let line = "The upgrade to v0.2.0 has begun";
    story.node.wait_for_line(line, PATIENCE)?;
    story.shows("Version Instar v0.2.0").await
}

async fn the_same_stick_does_nothing_the_second_time(story: &Story) -> Outcome {
    let words = "the bundle's version is v0.2.0, and v0.2.0 runs here";
    story.node.wait_for_line(words, PATIENCE)?;
    story.shows("approved by a person at this machine").await?;
    story.shows("The stick can be pulled out.").await?;
    println!("{}", screen(&story.node)?);
    Ok(())
}
