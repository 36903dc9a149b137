//! Images that only the site's proxy can reach.

use anyhow::ensure;
use instar_tests::{
    Greeter, HttpProxy, HttpsRegistry, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome,
    Registry, Scratch, Test, chapters, push_greeter, tests,
};

use crate::PATIENCE;

const PLAIN_PORT: u16 = 8080;
const TLS_PORT: u16 = 8082;

pub(crate) fn tests() -> Vec<Test> {
    tests![images_come_through_the_proxy_or_not_at_all]
}

/// For the node both registries' addresses are its own loopback: a registry is there only from the proxy's side.
async fn images_come_through_the_proxy_or_not_at_all(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let https = HttpsRegistry::over(&registry, &scratch)?;
    let proxy = HttpProxy::start(&scratch)?;
    let node = behind(&proxy, &scratch, &registry, &https).await?;
    chapters![
        a_missing_password_is_named(&node),
        a_config_with_the_password_is_taken(&node, &scratch, &proxy),
        images_come_through_the_proxy(&node),
        the_password_is_not_shown(&node),
        both_registries_were_asked_by_the_proxy(&proxy),
    ]
    .await
}

/// A node whose config lacks the proxy's password.
async fn behind(
    proxy: &HttpProxy,
    scratch: &Scratch,
    registry: &Registry,
    https: &HttpsRegistry,
) -> anyhow::Result<Node> {
    let (plain, tls) = (registry.address(), https.address());
    let (authority, wrong) = (https.authority_certificate(), proxy.url_without_password());
    Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(PLAIN_PORT)
        .forward(TLS_PORT)
        .configure(move |config| {
            let config = environment(config.install_disk("/dev/vda"), &wrong);
            with_greeters(config.registry_authority(&tls, &authority), &plain, &tls)
        })
        .boot()
        .await
}

fn with_greeters(config: MachineConfig, plain: &str, tls: &str) -> MachineConfig {
    config
        .registry(plain)
        .greeter_at("plain", &format!("{plain}/greeter:v1"), PLAIN_PORT, "")
        .greeter_at("tls", &format!("{tls}/greeter:v1"), TLS_PORT, "")
}

fn environment(config: MachineConfig, proxy: &str) -> MachineConfig {
    config.document(&format!(
        "apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {{http_proxy: \"{proxy}\", HTTPS_PROXY: \"{proxy}\"}}\n"
    ))
}

async fn a_missing_password_is_named(node: &Node) -> Outcome {
    for (service, said) in [("plain", "407"), ("tls", "it answers 407")] {
        node.wait_until("the proxy's refusal is shown", PATIENCE, async || {
            let events = node.service(service).await?.events.unwrap_or_default();
            let events = format!("{:?}", events.events);
            ensure!(events.contains(said), "{service}: {events}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn a_config_with_the_password_is_taken(
    node: &Node,
    scratch: &Scratch,
    proxy: &HttpProxy,
) -> Outcome {
    let (right, wrong) = (proxy.url(), proxy.url_without_password());
    let config = scratch.write("right.yaml", node.config().replace(&wrong, &right))?;
    let file = config.display().to_string();
    let client = Instarctl::of(node, scratch)?;
    let apply = ["apply-config", "--file", &file, "--mode", "no-reboot"];
    let said = client.run(&apply).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn images_come_through_the_proxy(node: &Node) -> Outcome {
    for port in [PLAIN_PORT, TLS_PORT] {
        let greeter = Greeter::at(node, port)?;
        node.wait_until("its image came through the proxy", PATIENCE, async || {
            greeter.greets()
        })
        .await?;
    }
    Ok(())
}

async fn the_password_is_not_shown(node: &Node) -> Outcome {
    let console = node.vm().console();
    ensure!(!console.contains("s3cret"), "the password is shown");
    Ok(())
}

async fn both_registries_were_asked_by_the_proxy(proxy: &HttpProxy) -> Outcome {
    let log = proxy.log()?;
    ensure!(
        log.contains("CONNECT 127.0.0.1:") && log.contains("GET http://127.0.0.1:"),
        "{log}"
    );
    Ok(())
}
