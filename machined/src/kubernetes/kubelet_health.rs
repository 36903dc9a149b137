//! The address at which kubelet itself says that it is healthy: a fact of this machine, whether the control plane can be reached or not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::Kubernetes;
use crate::values::{CheckTarget, HttpUrl};

/// kubelet among the names of the services that were up before an upgrade. No container has such a name: it has a slash.
pub const KUBELET_UP: &str = "kubernetes/kubelet";
/// kubelet's own port for this.
const PORT: u16 = 10248;

/// Returns the address that is asked; `None` if kubelet is told not to listen, or nobody can know where.
pub fn kubelet_health(kubernetes: &Kubernetes) -> Option<CheckTarget> {
    let node = &kubernetes.node;
    // An option is over the same field.
    let of = |option: &str, field: &str| {
        let options = node.kubelet_arguments.get(option);
        let given = options.and_then(|values| values.last()).cloned();
        given.or_else(|| match node.kubelet_config.get(field) {
            Some(serde_json::Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
            None => None,
        })
    };
    let port = match of("healthz-port", "healthzPort") {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => PORT,
    };
    let address: IpAddr = match of("healthz-bind-address", "healthzBindAddress") {
        Some(address) => address.parse().ok()?,
        None => Ipv4Addr::LOCALHOST.into(),
    };
    let address = match address.is_unspecified() {
        true => Ipv4Addr::LOCALHOST.into(),
        false => address,
    };
    let url = format!("http://{}/healthz", SocketAddr::new(address, port));
    let url: HttpUrl = url.parse().ok()?;
    Some(CheckTarget::Http(url))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::a_node;
    use super::*;

    fn asked(kubernetes: &Kubernetes) -> Option<String> {
        match kubelet_health(kubernetes)? {
            CheckTarget::Http(url) => Some(url.to_string()),
            CheckTarget::Tcp(_) => None,
        }
    }

    #[test]
    fn kubelet_is_asked_where_its_settings_have_it_listen() {
        let mut node = a_node::kubernetes();
        let usual = "http://127.0.0.1:10248/healthz";
        assert_eq!(asked(&node).as_deref(), Some(usual));
        let config = &mut node.node.kubelet_config;
        config.insert("healthzPort".to_owned(), json!(10300));
        config.insert("healthzBindAddress".to_owned(), json!("::1"));
        let by_fields = "http://[::1]:10300/healthz";
        assert_eq!(asked(&node).as_deref(), Some(by_fields));
        let config = &mut node.node.kubelet_config;
        config.insert("healthzBindAddress".to_owned(), json!("0.0.0.0"));
        let options = &mut node.node.kubelet_arguments;
        options.insert("healthz-port".to_owned(), vec!["10248".to_owned()]);
        assert_eq!(asked(&node).as_deref(), Some(usual));
        for none in ["0", "many"] {
            let options = &mut node.node.kubelet_arguments;
            options.insert("healthz-port".to_owned(), vec![none.to_owned()]);
            assert_eq!(asked(&node), None, "{none}");
        }
    }
}
