//! Offers a disk through an iSCSI target for initiators on this machine. If the server dies,
//! initiators log in again as soon as the next server listens.

use super::super::status::{Use, UseKind};
use super::{Attached, Start, StopError, until_free};
use farblock_iscsi::{Config, Server, StartError};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The well-known iSCSI port (RFC 7143).
const PORT: u16 = 3260;
const NAME: &str = "iqn.2026-11.org.farblock:";

struct Iscsi {
    server: Option<Server>,
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let wanted = settings.listen.map(|listen| listen.with_port(PORT));
    let listen = start.address(wanted.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, PORT).into()));
    // iSCSI names contain neither capitals nor underscores (RFC 7143, 4.2.7).
    let unit = start.name.to_lowercase().replace('_', "-");
    let mut config = Config::new(listen, &format!("{NAME}{unit}"));
    (config.engine, config.polling) = (settings.engine(), settings.spin());
    config.read_only = settings.read_only;
    if let Some(serial) = &settings.serial {
        config.serial.clone_from(serial);
    }
    let namespace = start.namespace()?;
    let is_busy = |error: &StartError| matches!(error, StartError::InUse(_));
    let server = until_free(|| Server::start(&config, Arc::clone(&namespace)), is_busy)?;
    if start.resume {
        // Initiators may still use another size, which the previous server reported.
        server.resized();
    }
    Ok(Box::new(Iscsi { server: Some(server) }))
}

impl Attached for Iscsi {
    fn used(&self) -> Use {
        let path = self.server.as_ref().map(Server::uri).unwrap_or_default();
        Use { kind: UseKind::Url, path, behind: None }
    }

    fn state(&self) -> Value {
        json!({ "address": self.server.as_ref().map(Server::address) })
    }

    fn users(&self) -> Vec<String> {
        match self.server.as_ref().map_or(0, Server::users) {
            0 => Vec::new(),
            1 => vec!["an iSCSI initiator is logged in".to_owned()],
            count => vec![format!("{count} iSCSI initiators are logged in")],
        }
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        StopError::if_used(self.users(), force)?;
        if let Some(server) = self.server.take()
            && let Err(error) = server.stop(true)
        {
            tracing::error!("an event loop of the server failed: {error}");
        }
        Ok(())
    }
}
