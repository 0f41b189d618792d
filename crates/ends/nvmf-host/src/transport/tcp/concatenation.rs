//! Secure channel concatenation: TLS with keys from an authentication.

use super::handshake::Handshake;
use crate::authentication;
use crate::exchange::Exchange;
use crate::transport::dial::{Caller, Unreached};
use farblock_proto::host::{ConnectError, command, refused};
use farblock_proto::tcp::TcpRefusal;
use farblock_secure::{Concatenation, HostTerms, TlsPsk};
use farblock_wire::IntoBytes;
use farblock_wire::fabrics::ConnectResult;
use farblock_wire::nqn::DISCOVERY_NQN;
use std::net::SocketAddr;

/// Connects an admin queue only to authenticate. Returns the generated TLS keys and the socket
/// address of the controller that has them. Returns `None` if the options do not request
/// concatenation, and for discovery services, which do not authenticate.
pub(super) async fn generate(
    addresses: &[SocketAddr],
    caller: &Caller<'_>,
) -> Result<Option<(Vec<TlsPsk>, SocketAddr)>, Unreached> {
    const DURING: &str = "the answer to Connect before TLS";
    let Caller { identity, options, sqsize_z, .. } = caller;
    if !options.tcp.concatenate || identity.subnqn == DISCOVERY_NQN {
        return Ok(None);
    }
    if options.tcp.tls_key.is_some() {
        let both = "use either a TLS key (--tls-key) or keys from the authentication \
                    (--concat), not both";
        return Err(tls(both));
    }
    let terms = authentication::terms(identity, options).await?;
    let terms = HostTerms { concatenation: Concatenation::NEW_TLS_PSK, ..terms };
    if !terms.has_offer() {
        let what = "the hash sha512 and the group null cannot generate a TLS key: allow others \
                    (--dhchap-hashes, --dhchap-dhgroups), or omit --concat";
        return Err(tls(what));
    }
    let (mut handshake, socket) = Handshake::connect(addresses, caller, &[]).await?;
    let failed = |reason| Unreached { reason, at: Some(socket.to_string()) };
    let data = command::connect_data(identity, None);
    let connect = command::connect(0, *sqsize_z, 0);
    let (cqe, _) = handshake.execute(&connect, data.as_bytes(), DURING).await.map_err(failed)?;
    if !cqe.status().is_success() {
        return Err(failed(refused(cqe.status(), cqe.result())));
    }
    let ConnectResult { authreq, .. } = ConnectResult::parse(cqe.result());
    if authreq & (ConnectResult::AUTHREQ_ATR | ConnectResult::AUTHREQ_ASCR) == 0 {
        return Err(failed(ConnectError::AuthenticationNotOffered));
    }
    let psks = authentication::converse(&mut handshake, terms).await.map_err(failed)?;
    // Without keys, the next connection would be plain TCP, so report an error.
    match psks.is_empty() {
        true => Err(tls("the authentication generated no TLS key")),
        false => Ok(Some((psks, socket))),
    }
}

fn tls(sentence: &str) -> Unreached {
    ConnectError::from(TcpRefusal::Tls(sentence.to_owned())).into()
}
