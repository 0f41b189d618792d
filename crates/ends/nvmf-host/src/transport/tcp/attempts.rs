//! Connects to a name that has several addresses. The attempts start one after another, and then
//! run in parallel (RFC 8305). The host uses the first successful attempt and drops the others.

use crate::control::Local;
use crate::limits;
use crate::transport::dial::Unreached;
use farblock_proto::host::ConnectError;
use farblock_reactor::os;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

/// Returns the addresses in the order of the attempts. `first` comes first if it is among `found`.
/// IPv4 and IPv6 addresses then alternate, each family in the resolver's order. There are at most
/// [`limits::ADDRESSES`] addresses, without duplicates.
pub(super) fn order(found: Vec<SocketAddr>, first: Option<SocketAddr>) -> Vec<SocketAddr> {
    let leads = found.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = found.into_iter().partition(|it| it.is_ipv6() == leads);
    let first = first.filter(|it| one.contains(it) || other.contains(it));
    let turns = one.len().max(other.len());
    let in_turn = (0..turns).flat_map(|turn| [one.get(turn).copied(), other.get(turn).copied()]);
    let mut order: Vec<SocketAddr> = Vec::new();
    for address in std::iter::once(first).chain(in_turn).flatten() {
        if !order.contains(&address) {
            order.push(address);
        }
    }
    order.truncate(limits::ADDRESSES);
    order
}

/// Returns the result and the address of the first successful attempt. The next attempt starts when
/// the previous one has failed or has run for [`limits::ATTEMPT_DELAY`].
pub(super) async fn first_of<T, F: Future<Output = Result<T, ConnectError>>>(
    local: &Local,
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<(T, SocketAddr), Unreached> {
    let mut next = addresses.iter().copied();
    let mut under_way: Vec<(SocketAddr, Pin<Box<F>>)> = Vec::new();
    let mut failed = Vec::new();
    loop {
        match next.next() {
            Some(address) => under_way.push((address, Box::pin(attempt(address)))),
            None if under_way.is_empty() => return Err(Unreached::of(failed)),
            None => {}
        }
        let ended = ended(&mut under_way);
        let ended = match next.len() {
            0 => Some(ended.await),
            _ => local.until(os::now() + limits::ATTEMPT_DELAY, ended).await,
        };
        match ended {
            Some((index, Ok(made))) => return Ok((made, under_way.swap_remove(index).0)),
            Some((index, Err(error))) => failed.push((under_way.remove(index).0, error)),
            None => {}
        }
    }
}

/// Waits until an attempt ends. Returns its index and output.
async fn ended<F: Future>(under_way: &mut [(SocketAddr, Pin<Box<F>>)]) -> (usize, F::Output) {
    poll_fn(|context| {
        for (index, (_, attempt)) in under_way.iter_mut().enumerate() {
            if let Poll::Ready(output) = attempt.as_mut().poll(context) {
                return Poll::Ready((index, output));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, reply};
    use farblock_reactor::EngineKind;
    use std::sync::{Arc, Mutex};

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_alternate_by_family_after_the_last_working_address() {
        let [a, b, c, d] = ["[::1]:1", "[::2]:1", "1.0.0.1:1", "1.0.0.2:1"].map(address);
        assert_eq!(order(vec![a, b, c, d, a], None), [a, c, b, d]);
        assert_eq!(order(vec![c, d, a], Some(d)), [d, c, a]);
        assert_eq!(
            order(vec![c, d], Some(a)),
            [c, d],
            "the last working address is no longer listed"
        );
        assert_eq!(order(Vec::new(), None), []);
        let many = (0..100).map(|port| SocketAddr::from(([1, 0, 0, 1], port))).collect();
        assert_eq!(order(many, None).len(), limits::ADDRESSES);
    }

    /// Runs attempts with the results in `ends`; an attempt with `None` never ends. Returns the
    /// overall result and the addresses of the attempts that started.
    fn run(
        ends: Vec<(SocketAddr, Option<Result<(), ConnectError>>)>,
    ) -> (Result<SocketAddr, Unreached>, Vec<SocketAddr>) {
        let control = Control::shared(EngineKind::Portable).expect("a loop");
        let begun = Arc::new(Mutex::new(Vec::new()));
        let (done, end) = reply();
        let noted = Arc::clone(&begun);
        control.spawn(move |local| {
            let local = local.clone();
            async move {
                let addresses: Vec<SocketAddr> = ends.iter().map(|(at, _)| *at).collect();
                let attempt = |at| {
                    noted.lock().unwrap().push(at);
                    let (_, end) = ends.iter().find(|(it, _)| *it == at).expect("a tried address");
                    async move {
                        match end {
                            Some(end) => end.clone(),
                            None => std::future::pending().await,
                        }
                    }
                };
                let result = first_of(&local, &addresses, attempt).await;
                done.send(result.map(|((), at)| at));
            }
        });
        let result = end.wait().expect("the task runs");
        let begun = begun.lock().unwrap().clone();
        (result, begun)
    }

    #[test]
    fn a_silent_or_failed_address_does_not_delay_the_next() {
        let [a, b, c] = ["1.0.0.1:1", "1.0.0.2:1", "1.0.0.3:1"].map(address);
        let refused = || Some(Err(ConnectError::Refused));
        let (result, begun) = run(vec![(a, None), (b, refused()), (c, Some(Ok(())))]);
        assert_eq!((result.ok(), begun), (Some(c), vec![a, b, c]));
        let (result, begun) = run(vec![(a, Some(Ok(()))), (b, None)]);
        assert_eq!((result.ok(), begun), (Some(a), vec![a]));
    }

    #[test]
    fn the_error_names_every_address_and_the_most_specific_reason() {
        let [a, b, c] = ["1.0.0.1:1", "1.0.0.2:1", "1.0.0.3:1"].map(address);
        let refused = || Some(Err(ConnectError::Refused));
        let closed = ConnectError::Closed { during: "the first answer" };
        let (result, _) = run(vec![(a, refused()), (b, Some(Err(closed.clone()))), (c, refused())]);
        let unreached = result.expect_err("every address fails");
        assert_eq!(unreached.reason, closed);
        let at = unreached.at.expect("one of the tried addresses");
        assert!(at.starts_with("1.0.0.2:1; 1.0.0.1:1: "), "{at}");
        assert!(at.contains("; 1.0.0.3:1: "), "{at}");
        let (result, _) = run(vec![(a, refused()), (b, refused())]);
        assert_eq!(
            result.expect_err("both addresses fail").at.as_deref(),
            Some("1.0.0.1:1, 1.0.0.2:1")
        );
        let (result, _) = run(Vec::new());
        let reason = result.expect_err("there is no address").reason;
        assert!(reason.to_string().contains("no address"), "{reason}");
    }
}
