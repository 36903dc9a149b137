//! From power-on to an API that answers.

use std::time::{Duration, Instant};

use anyhow::ensure;
use instar_tests::{
    HttpServer, Identity, ImageUnderTest, MachineConfig, Node, Outcome, Scratch, Test, tests,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        answers_with_its_version,
        takes_its_config_from_a_url_that_comes_late,
        a_config_that_makes_no_sense_leads_to_maintenance_mode
    ]
}

async fn answers_with_its_version(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(384)
        .boot()
        .await?;
    let version = node.version().await?;
    ensure!(version.tag == "v0.1.0", "it says {version:?}");
    Ok(())
}

async fn takes_its_config_from_a_url_that_comes_late(scratch: Scratch) -> Outcome {
    let server = HttpServer::start()?;
    let url = server.url_for_guest("/node.yaml?name=${hostname}&mac=${mac}");
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname("by-url").to_yaml();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .spec(|spec| {
            spec.command_line(format!(
                "console=ttyS0 panic=10 cryptomgr.notests instar.config={url}"
            ))
        })
        .start()?;
    let until = Instant::now() + PATIENCE;
    while server.requests().is_empty() {
        ensure!(Instant::now() < until, "it never asked for its config");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.serve("/node.yaml", config);
    node.wait_for_api(PATIENCE).await?;
    let asked = server.requests();
    ensure!(
        asked.len() > 1
            && asked
                .iter()
                .all(|target| target.starts_with("/node.yaml?name=instar-")
                    && target.ends_with("&mac=52%3A54%3A00%3A12%3A34%3A56")),
        "{asked:?}"
    );
    let hostname = node.hostname().await?;
    ensure!(hostname == "by-url", "it is called {hostname}");
    Ok(())
}

async fn a_config_that_makes_no_sense_leads_to_maintenance_mode(scratch: Scratch) -> Outcome {
    let yaml = "version: v1alpha1\nmachine:\n  typ: controlplane\n";
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .config(yaml, Identity::administrator()?)
        .start()?;
    let line = node.wait_for_line("machined: maintenance mode: ", PATIENCE)?;
    ensure!(
        line.contains("machine.typ") && line.contains("line 3"),
        "{line}"
    );
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    Ok(())
}
