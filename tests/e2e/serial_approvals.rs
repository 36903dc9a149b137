//! A person at a serial line, who reads a stick's digits there and types them: a machine in a rack has no screen.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use instar_tests::{
    GREETER, ImageUnderTest, Node, NodePlan, Outcome, Registry, Scratch, Test, bundle, chapters,
    greeter_image, place_for_sticks, plug_in, pull_out, stick, tests,
};

use crate::PATIENCE;
use crate::sticks::digits;

const ALLOWED: &str = "apiVersion: instar.dev/v1alpha1\nkind: BundleConfig\naskAt: [serial]\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_person_types_the_digits]
}

/// A machine without a screen, and a stick that nobody has signed.
struct Story {
    node: Node,
    stick: PathBuf,
}

async fn a_person_types_the_digits(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    chapters![
        a_wrong_digit_at_the_line_refuses(&story),
        the_right_digits_at_the_line_approve(&story),
    ]
    .await
}

impl Story {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let registry = Registry::start(scratch)?;
        greeter_image("two")?.push(&registry, GREETER, "v2")?;
        let file = bundle(&registry, scratch, "unsigned.bundle", &["greeter:v2"]).await?;
        let plan = with_line(Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?);
        let plan = plan.configure(|config| config.install_disk("/dev/vda").document(ALLOWED));
        let node = plan.boot().await?;
        node.wait_until_ready(PATIENCE).await?;
        let stick = stick(scratch, "unsigned.img", "INSTAR-BUNDLE", &file)?;
        Ok(Self { node, stick })
    }

    /// Plugs the stick in; returns the digits that the line asks for.
    fn digits(&self, name: &str) -> Result<String> {
        let vm = self.node.vm();
        let mark = vm.console_mark()?;
        plug_in(vm, name, &self.stick)?;
        // The last line of the question.
        vm.wait_for_line_after(mark, "A wrong digit refuses it", PATIENCE)?;
        let console = vm.console();
        let mut newest_first = console.lines().rev().map(str::trim);
        newest_first.find_map(digits).context(console.clone())
    }
}

fn with_line(plan: NodePlan) -> NodePlan {
    plan.spec(|spec| {
        let words = place_for_sticks().into_iter();
        words.fold(
            spec.console_takes_keys(),
            instar_qemu::VmSpec::extra_argument,
        )
    })
}

async fn a_wrong_digit_at_the_line_refuses(story: &Story) -> Outcome {
    let digits = story.digits("wrong")?;
    let wrong = if digits.starts_with('9') { "0" } else { "9" };
    story.node.vm().type_at_console(wrong)?;
    story
        .node
        .wait_for_line("a wrong digit was typed", PATIENCE)?;
    pull_out(story.node.vm(), "wrong").map(drop)
}

async fn the_right_digits_at_the_line_approve(story: &Story) -> Outcome {
    let digits = story.digits("right")?;
    story.node.vm().type_at_console(&digits)?;
    let line = "approved by a person at this machine";
    story.node.wait_for_line(line, PATIENCE).map(drop)
}
