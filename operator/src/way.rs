//! The ways to clusters: that of this process, and those of kubeconfigs.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::failure::Error;

/// Timeout of a call, for each part of it.
pub(crate) const CALL: Duration = Duration::from_secs(15);

/// A client of the cluster whose answers come within this time. Watches are silent for longer, and have a limit of their own for that.
pub(crate) async fn client(read: Option<Duration>) -> Result<Client, Error> {
    let mut config = way().await?;
    config.read_timeout = read;
    Client::try_from(config).map_err(Error::calling("the way to the cluster cannot be used"))
}

/// A client whose calls end with the first answer. The usual one asks up to 15 times when it is refused with 429, which a disruption budget does for
/// as long as it holds: one pod would keep all others of its node from their evictions, and nobody would know why.
pub(crate) async fn client_without_retries() -> Result<Client, Error> {
    let mut config = way().await?;
    config.read_timeout = Some(CALL);
    config.default_retry = false;
    Client::try_from(config).map_err(Error::calling("the way to the cluster cannot be used"))
}

/// The way to the cluster, and this process's credentials.
pub(crate) async fn way() -> Result<Config, Error> {
    let found = Config::infer().await;
    let config =
        found.map_err(|error| Error::Other(format!("there is no way to the cluster: {error}")))?;
    Ok(with_limits(config))
}

/// A client of the cluster that a kubeconfig leads to. Answers come within this time.
///
/// Nothing of the kubeconfig but what it contains itself is used: a plugin that it names would run as a program, and a file that it names would
/// be one of this process's.
pub(crate) async fn client_of(kubeconfig: &str, read: Duration) -> Result<Client, Error> {
    let bad = |why: String| Error::Other(format!("the kubeconfig cannot be used: {why}"));
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(|error| bad(error.to_string()))?;
    if let Some(what) = reaches_out(&kubeconfig) {
        return Err(bad(format!("it names {what} outside of itself")));
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = with_limits(config.map_err(|error| bad(error.to_string()))?);
    config.connect_timeout = Some(read);
    config.read_timeout = Some(read);
    Client::try_from(config).map_err(Error::calling("the kubeconfig cannot be used"))
}

/// The program or the file that a kubeconfig takes from elsewhere, as words for an error; none if it is complete.
fn reaches_out(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let users = kubeconfig.auth_infos.iter();
    let users = users.filter_map(|user| user.auth_info.as_ref());
    for user in users {
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Some("a program");
        }
        let files = [&user.token_file, &user.client_certificate, &user.client_key];
        if files.into_iter().any(Option::is_some) {
            return Some("a file");
        }
    }
    let clusters = kubeconfig.clusters.iter();
    let mut clusters = clusters.filter_map(|cluster| cluster.cluster.as_ref());
    clusters
        .any(|cluster| cluster.certificate_authority.is_some())
        .then_some("a file")
}

fn with_limits(mut config: Config) -> Config {
    // An eviction that a budget forbids is refused with a time to wait: the drain has to know of it, and not wait in the client.
    config.default_retry = false;
    config.connect_timeout = Some(CALL);
    config.reset_reader_on_write = true;
    config.write_timeout = Some(CALL);
    config
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_kubeconfig_that_reaches_out_is_refused() {
        let kubeconfig = |cluster: &str, user: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"https://h\"{cluster}}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n"
            );
            Kubeconfig::from_yaml(&text).unwrap()
        };
        for (cluster, user, expected) in [
            ("", "token: t", None),
            (
                "",
                "client-certificate-data: YQ==, client-key-data: YQ==",
                None,
            ),
            ("", "exec: {command: sh, apiVersion: v1}", Some("a program")),
            ("", "tokenFile: /etc/shadow", Some("a file")),
            ("", "client-key: /etc/shadow", Some("a file")),
            (", certificate-authority: /x", "token: t", Some("a file")),
        ] {
            assert_eq!(
                reaches_out(&kubeconfig(cluster, user)),
                expected,
                "{cluster} {user}"
            );
        }
    }
}
