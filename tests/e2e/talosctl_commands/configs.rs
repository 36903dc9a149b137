//! Configs are applied, patched and edited.

use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;

use super::*;

/// The config in force, including the documents that clients of Talos are not shown.
async fn whole_config(node: &Node) -> anyhow::Result<String> {
    let mut state = StateClient::new(node.channel().await?);
    let asked = GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: "v1alpha1".to_owned(),
        ..Default::default()
    };
    let answer = state.get(asked).await?.into_inner();
    let spec = answer.resource.and_then(|resource| resource.spec);
    let spec = spec.context("a config without content")?;
    Ok(serde_saphyr::from_str(&spec.yaml_spec)?)
}

/// Waits until the host name is the config's: machined's network applies it a moment later.
async fn is_called(node: &Node, name: &str) -> Outcome {
    node.wait_until("it has another name", PATIENCE, async || {
        let called = node.hostname().await?;
        ensure!(called == name, "it is called {called}");
        Ok(())
    })
    .await
}

/// A config with another host name.
fn renamed(config: &str) -> String {
    config.replace("hostname: node", "hostname: renamed")
}

pub(super) async fn configs_are_applied(
    talosctl: &Talosctl<'_>,
    node: &Node,
    release: Release,
) -> Outcome {
    ensure!(renamed(node.config()) != node.config());
    chapters![
        a_config_is_not_applied_by_a_dry_run(talosctl, node),
        a_config_that_is_none_is_refused(talosctl),
        a_config_is_applied_in_each_mode(talosctl, node),
        a_config_on_trial_ends_with_another(talosctl, node),
        the_older_release_alone_knows_the_mode_reboot(talosctl, node, release),
    ]
    .await
}

async fn the_older_release_alone_knows_the_mode_reboot(
    talosctl: &Talosctl<'_>,
    node: &Node,
    release: Release,
) -> Outcome {
    let reboot = "apply-config --mode reboot --dry-run";
    let said = talosctl.run_with(reboot, &renamed(node.config())).await;
    ensure!(
        (said.code == Some(0)) == (release == Release::V1_13),
        "{said:?}"
    );
    Ok(())
}

async fn a_config_is_not_applied_by_a_dry_run(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let renamed = renamed(node.config());
    let said = talosctl.run_with("apply-config --dry-run", &renamed).await;
    ensure!(
        said.code == Some(0) && said.complaint.contains("+hostname: renamed"),
        "{said:?}"
    );
    ensure!(node.hostname().await? == "node");
    Ok(())
}

async fn a_config_that_is_none_is_refused(talosctl: &Talosctl<'_>) -> Outcome {
    let wrong = "machine: {typ: worker}";
    let said = talosctl.run_with("apply-config", wrong).await;
    ensure!(
        said.code == Some(1) && said.complaint.contains("InvalidArgument"),
        "{said:?}"
    );
    Ok(())
}

async fn a_config_is_applied_in_each_mode(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let before = node.config();
    let renamed = renamed(before);
    for (mode, text, name) in [
        ("no-reboot", renamed.as_str(), "renamed"),
        ("auto", before, "node"),
        ("staged", before, "node"),
    ] {
        let apply = format!("apply-config --mode {mode}");
        let said = talosctl.run_with(&apply, text).await;
        ensure!(said.code == Some(0), "{mode}: {said:?}");
        is_called(node, name).await?;
    }
    Ok(())
}

/// The trial ends by itself after a minute, or when a client applies another config.
async fn a_config_on_trial_ends_with_another(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let renamed = renamed(node.config());
    let said = talosctl.run_with("apply-config --mode try", &renamed).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "renamed").await?;
    let said = talosctl.run_with("apply-config", node.config()).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "node").await
}

/// The client is shown all documents but the kinds that Talos does not have.
pub(super) async fn the_config_is_edited(
    talosctl: &Talosctl<'_>,
    node: &Node,
    release: Release,
) -> Outcome {
    let documents = node.config().split_once("---\napiVersion: instar.dev");
    let (shown, ours) = documents.context("no document of ours in the config")?;
    ensure!(!ours.contains("---\n"), "{ours}");
    match release {
        Release::V1_13 => an_older_client_does_not_know_newer_kinds(talosctl, shown).await,
        Release::V1_14 => {
            a_patch_keeps_what_is_not_shown(talosctl, node, shown).await?;
            an_edit_keeps_what_is_not_shown(talosctl, node, shown).await?;
            nothing_but_the_machine_config_is_patched(talosctl, node).await
        }
    }
}

/// Kinds of Talos's own that an older client does not know.
async fn an_older_client_does_not_know_newer_kinds(
    talosctl: &Talosctl<'_>,
    shown: &str,
) -> Outcome {
    for command in ["patch mc", "edit mc"] {
        let said = talosctl.run_with(command, &renamed(shown)).await;
        let why = "\"UnattendedInstallConfig\" \"v1alpha1\": not registered";
        ensure!(
            said.code == Some(1) && said.complaint.contains(why),
            "{said:?}"
        );
    }
    Ok(())
}

async fn a_patch_keeps_what_is_not_shown(
    talosctl: &Talosctl<'_>,
    node: &Node,
    shown: &str,
) -> Outcome {
    let said = talosctl.run_with("edit mc", shown).await;
    ensure!(said.output == "no changes\n", "{said:?}");
    let said = talosctl.run_with("patch mc", &renamed(shown)).await;
    let kept = "WARNING: ContainerHealthConfig greeter: not shown to clients of Talos";
    ensure!(
        said.code == Some(0) && said.complaint.contains(kept),
        "{said:?}"
    );
    is_called(node, "renamed").await?;
    let whole = whole_config(node).await?;
    ensure!(whole == renamed(node.config()), "{whole}");
    Ok(())
}

async fn an_edit_keeps_what_is_not_shown(
    talosctl: &Talosctl<'_>,
    node: &Node,
    shown: &str,
) -> Outcome {
    let said = talosctl.run_with("edit machineconfig", shown).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "node").await?;
    ensure!(whole_config(node).await? == node.config());
    Ok(())
}

async fn nothing_but_the_machine_config_is_patched(
    talosctl: &Talosctl<'_>,
    node: &Node,
) -> Outcome {
    let said = talosctl.run_with("patch hostname", node.config()).await;
    ensure!(said.code == Some(1), "{said:?}");
    Ok(())
}
