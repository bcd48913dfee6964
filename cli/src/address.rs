// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the locks are: which servers there are, how to log in there, and what is put before each key.

use std::path::Path;

use slock_client::redis::cluster::ClusterClient;
use slock_client::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use slock_client::redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    TlsCertificates, TlsMode,
};
use slock_client::{Locks, Server, redis};

use crate::args::At;
use crate::failure::{Failure, explain};
use crate::url;

const PASSWORD: &str = "SLOCK_PASSWORD";
/// That of redis-cli.
const REDIS_PASSWORD: &str = "REDISCLI_AUTH";
/// Variables that a command gets no copy of.
pub const SECRETS: [&str; 3] = ["SLOCK_USER", PASSWORD, REDIS_PASSWORD];

pub enum Kind {
    Single,
    /// The name under which the Sentinels know the primary.
    Sentinel(String),
    Cluster,
}

/// Where the locks are.
pub struct Place {
    pub kind: Kind,
    /// The server, or the Sentinels or nodes that are asked for the others.
    pub first: Vec<ConnectionInfo>,
    /// User, password, database and TLS of the servers; the address is not used.
    server: ConnectionInfo,
    certificates: Option<TlsCertificates>,
    /// What may be shown: no password.
    pub shown: String,
    /// What is put before each key.
    prefix: String,
}

impl Place {
    pub fn of(at: &At) -> Result<Self, Failure> {
        url::check(&at.url)?;
        let certificates = certificates(at)?;
        let prefix = at.prefix.clone();
        let login = Login::of(at)?;
        let (scheme, rest) = at.url.split_once("://").unwrap_or_default();
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let open = |url: String| connection_info(&url, certificates.as_ref());
        let open_server = |url: String| Ok(login.add_to(open(url)?));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let authority = authority.split('?').next().unwrap_or("");
        let (at_login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        let shown = format!("{kind} {}", hosts.join(","));
        match kind {
            "cluster" => {
                let urls = hosts.iter().map(|host| format!("{scheme}://{at_login}{host}"));
                let first = urls.map(open_server).collect::<Result<Vec<_>, _>>()?;
                let server = first[0].clone();
                Ok(Self { kind: Kind::Cluster, first, server, certificates, shown, prefix })
            }
            "sentinel" => {
                let (path, query) = path.split_once('?').unwrap_or((path, ""));
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let of_query = |name: &str| {
                    let parts = query.split('&').filter_map(|part| part.split_once('='));
                    parts.filter(|(key, _)| *key == name).map(|(_, value)| value).next().unwrap_or("")
                };
                let login_there = match (of_query("sentinel-user"), of_query("sentinel-password")) {
                    ("", "") => String::new(),
                    (user, password) => format!("{user}:{password}@"),
                };
                let urls = hosts.iter().map(|host| match has_port(host) {
                    true => format!("{scheme}://{login_there}{host}"),
                    false => format!("{scheme}://{login_there}{host}:26379"),
                });
                let first = urls.map(open).collect::<Result<Vec<_>, _>>()?;
                let server = open_server(format!("{scheme}://{at_login}{}/{database}", hosts[0]))?;
                let kind = Kind::Sentinel(name.to_owned());
                Ok(Self { kind, first, server, certificates, shown, prefix })
            }
            _ => {
                let server = open_server(at.url.clone())?;
                let shown = server.addr().to_string();
                Ok(Self {
                    kind: Kind::Single,
                    first: vec![server.clone()],
                    server,
                    certificates,
                    shown,
                    prefix,
                })
            }
        }
    }

    /// The name of a key on the server.
    pub fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A key in one line: the servers as they were named, the name of a primary, the database, the name on the server.
    pub fn line(&self, key: &str) -> String {
        let primary = if let Kind::Sentinel(name) = &self.kind { name } else { "" };
        let database = self.server.redis_settings().db();
        format!("{} {primary}/{database} {}", self.shown, self.full(key)).replace('\n', " ")
    }

    /// The key of a name on the server, if it begins with the prefix.
    pub fn key<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        name.strip_prefix(self.prefix.as_bytes())
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn locks(&self) -> Result<Locks, Failure> {
        Ok(Locks::builder(self.server()?).prefix(&self.prefix).build())
    }

    /// The servers, as the library takes them.
    fn server(&self) -> Result<Server, Failure> {
        let failure = |error| Failure::usage(explain(&error, &self.shown));
        match &self.kind {
            Kind::Single => Ok(Client::open(self.server.clone()).map_err(failure)?.into()),
            Kind::Cluster => {
                let mut builder =
                    ClusterClient::builder(self.first.clone()).use_protocol(ProtocolVersion::RESP3);
                if let Some(certificates) = &self.certificates {
                    builder = builder.certs(certificates.clone());
                }
                Ok(builder.build().map_err(failure)?.into())
            }
            Kind::Sentinel(name) => {
                let sentinels = self.first.iter().map(|info| info.addr().clone());
                let mut builder = SentinelClientBuilder::new(sentinels, name, SentinelServerType::Master)
                    .map_err(failure)?;
                let there = self.first[0].redis_settings();
                let server = self.server.redis_settings();
                builder = builder.set_client_to_redis_db(server.db());
                if let Some(user) = server.username() {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = server.password() {
                    builder = builder.set_client_to_redis_password(password);
                }
                if let Some(user) = there.username() {
                    builder = builder.set_client_to_sentinel_username(user);
                }
                if let Some(password) = there.password() {
                    builder = builder.set_client_to_sentinel_password(password);
                }
                if matches!(self.server.addr(), ConnectionAddr::TcpTls { .. }) {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                }
                if let Some(certificates) = &self.certificates {
                    builder = builder
                        .set_client_to_redis_certificates(certificates.clone())
                        .set_client_to_sentinel_certificates(certificates.clone());
                }
                Ok(builder.build().map_err(failure)?.into())
            }
        }
    }

    /// How to reach a server of which another told the address.
    pub fn at(&self, host: String, port: u16) -> ConnectionInfo {
        let address = match self.server.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.server.clone().set_addr(address)
    }
}

/// In `[::1]:6379` as in `host:6379`.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// The error does not quote the URL, which may hold a password.
fn connection_info(url: &str, certificates: Option<&TlsCertificates>) -> Result<ConnectionInfo, Failure> {
    let refused = |error: redis::RedisError| Failure::usage(format!("the URL is not understood: {error}"));
    let info = url.into_connection_info().map_err(refused)?;
    match (info.addr(), certificates) {
        (ConnectionAddr::TcpTls { .. }, Some(certificates)) => {
            let client = Client::build_with_tls(info, certificates.clone());
            Ok(client.map_err(refused)?.get_connection_info().clone())
        }
        _ => Ok(info),
    }
}

/// User and password from elsewhere than the URL.
struct Login {
    user: Option<String>,
    /// From a file: it comes before that of the URL.
    given: Option<String>,
    /// From the environment: it comes after that of the URL.
    default: Option<String>,
}

impl Login {
    fn of(at: &At) -> Result<Self, Failure> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let given = match &at.password_file {
            Some(path) => {
                let text = String::from_utf8_lossy(&read(path)?).into_owned();
                Some(text.lines().next().unwrap_or("").to_owned())
            }
            None => None,
        };
        let default = variable(PASSWORD).or_else(|| variable(REDIS_PASSWORD));
        Ok(Self { user: at.user.clone().filter(|user| !user.is_empty()), given, default })
    }

    fn add_to(&self, info: ConnectionInfo) -> ConnectionInfo {
        let mut settings = info.redis_settings().clone();
        if let Some(user) = self.user.as_ref().filter(|_| settings.username().is_none()) {
            settings = settings.set_username(user);
        }
        let default = self.default.as_ref().filter(|_| settings.password().is_none());
        if let Some(password) = self.given.as_ref().or(default) {
            settings = settings.set_password(password);
        }
        info.set_redis_settings(settings)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

fn certificates(at: &At) -> Result<Option<TlsCertificates>, Failure> {
    let root_cert = at.tls_ca.as_deref().map(read).transpose()?;
    let client_tls = match (&at.tls_cert, &at.tls_key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
        _ => None,
    };
    if root_cert.is_none() && client_tls.is_none() {
        return Ok(None);
    }
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}
