#!/usr/bin/env python3
"""Prints the known answers of tests/known_answers.rs and tests/concatenation.rs.

This is a second implementation of the protocol of this crate. It uses Python's own hashes and
integers. It was written from the specification (Base 2.0c, "DH-HMAC-CHAP Protocol"; Base 2.1,
"Generated PSK for TLS"; TP 8018) and from RFC 5869, 7919 and 8446, and not from the crate.
"""
import base64, hashlib, hmac, struct, zlib

HOST, SUB = b"nqn.2014-08.org.nvmexpress:uuid:host", b"nqn.2026-11.org.example:disks"
HASHES = [(1, hashlib.sha256), (2, hashlib.sha384), (3, hashlib.sha512)]
GROUPS = [(1, 2048, 560316, 256), (2, 3072, 2625351, 320), (3, 4096, 5736041, 384),
          (4, 6144, 15705020, 384), (5, 8192, 10965728, 448), (0, 0, 0, 0)]


def e(bits):
    total, term, k = 0, 1 << (bits + 64), 0
    while term:
        total, k = total + term, k + 1
        term //= k
    return total >> 64


def prime(bits, x):
    return 2**bits - 2**(bits - 64) + (e(bits - 130) + x) * 2**64 - 1


class Random:
    """Generates the same bytes as the entropy of the tests."""

    def __init__(self, seed):
        self.state = seed

    def take(self, count):
        out = bytearray()
        for _ in range(count):
            self.state = (self.state * 1103515245 + 12345) % 2**31
            out.append(self.state >> 16 & 0xff)
        return bytes(out)


def transformed(key, number, name):
    return key if number == 0 else hmac.digest(key, name + b"NVMe-over-Fabrics", HASHES[number - 1][1])


def text(key, number):
    crc = struct.pack("<I", zlib.crc32(key))
    return "DHHC-1:%02x:%s:" % (number, base64.b64encode(key + crc).decode())


def tls_keys(h, hash_id, shared, c1, c2):
    """Returns the identity, the specified key, and the key that Linux 6.15 to 6.17 derive."""
    generated = hmac.digest(h(shared).digest(), c1 + c2, h)
    names = HOST + b" " + SUB
    digest = base64.b64encode(hmac.digest(generated, names + b" NVMe-over-Fabrics", h))
    context = b"%02d " % hash_id + digest
    size, label = h().digest_size, b"tls13 nvme-tls-psk"
    extracted = hmac.digest(bytes(size), generated, h)
    framed = struct.pack(">HB", size, len(label)) + label + bytes([len(context)]) + context
    unframed = struct.pack(">H", size) + label + context
    keys = [hmac.digest(extracted, info + b"\1", h).hex() for info in (framed, unframed)]
    return b"NVMe1G%02d " % hash_id + names + b" " + digest, *keys


def transcript(hash_id, group, mutual, controller_seed, host_seed, sc_c=0):
    """Returns Challenge, Reply and Success1, the shared secret, and the values for TLS."""
    h = HASHES[hash_id - 1][1]
    size = h().digest_size
    group_id, bits, x, exponent = group
    p = prime(bits, x) if bits else 0
    controller, host = Random(controller_seed), Random(host_seed)
    t_id = struct.unpack("<H", host.take(2))[0]
    a = int.from_bytes(controller.take(exponent // 8), "big")
    c1 = controller.take(size)
    s1 = struct.unpack("<I", controller.take(4))[0]
    public = pow(2, a, p).to_bytes(bits // 8, "big") if bits else b""
    head = struct.pack("<BBHHBBBBHI", 1, 1, 0, t_id, size, 0, hash_id, group_id, len(public), s1)
    challenge = head + c1 + public
    b = int.from_bytes(host.take(exponent // 8), "big")
    value = pow(2, b, p).to_bytes(bits // 8, "big") if bits else b""
    shared = pow(2, a * b, p).to_bytes(bits // 8, "big") if bits else b""
    c2 = host.take(size) if mutual or sc_c else bytes(size)
    s2 = struct.unpack("<I", host.take(4))[0] if mutual else 0

    def augmented(c):
        return hmac.digest(h(shared).digest(), c, h) if bits else c

    def answer(key, c, s, role, own, other):
        data = augmented(c) + struct.pack("<IHB", s, t_id, sc_c) + role + own + b"\0" + other
        return hmac.digest(key, data, h)

    host_key = transformed(bytes(range(32)), 1, HOST)
    controller_key = transformed(bytes(range(100, 164)), 3, SUB)
    r1 = answer(host_key, c1, s1, b"HostHost", HOST, SUB)
    reply = struct.pack("<BBHHBBBBHI", 1, 2, 0, t_id, size, 0, mutual or sc_c > 0, 0, len(value), s2)
    reply += r1 + c2 + value
    r2 = answer(controller_key, c2, s2, b"Controller", SUB, HOST) if mutual else b""
    success1 = struct.pack("<BBHHBBB7x", 1, 3, 0, t_id, size, 0, mutual) + r2
    return challenge + reply + success1, shared, tls_keys(h, hash_id, shared, c1, c2)


print('const HOST_SECRET: &str =\n    "%s";' % text(bytes(range(32)), 1))
long = text(bytes(range(100, 164)), 3)
print('const CONTROLLER_SECRET: &str = "\\\n    %s\\\n    %s";' % (long[:80], long[80:]))
print("const TRANSCRIPTS: [(u8, u8, bool, &str); 36] = [")
for hash_id, _ in HASHES:
    for group in GROUPS:
        for mutual in (False, True):
            data, _, _ = transcript(hash_id, group, mutual, 7, 11)
            digest = hashlib.sha256(data).hexdigest()
            print('    (%d, %d, %s, "%s"),' % (hash_id, group[0], str(mutual).lower(), digest))
print("];")
for seed in range(1, 10000):
    data, shared, _ = transcript(1, GROUPS[0], True, seed, 11)
    if shared[0] == 0:
        print("/// The shared secret of this seed begins with %s." % shared[:3].hex())
        print('const LEADING_ZERO: (u32, &str) =\n    (%d, "%s");' % (seed, hashlib.sha256(data).hexdigest()))
        break

print("\n// tests/concatenation.rs")
for seed in (7, seed):
    for hash_id in (1, 2):
        for mutual in (False, True):
            for sc_c in (2, 3):
                data, _, (identity, *keys) = transcript(hash_id, GROUPS[0], mutual, seed, 11, sc_c)
                said = hashlib.sha256(data + b"".join(key.encode() for key in keys) + identity).hexdigest()
                print('    (%d, %d, %s, %d, "%s"),' % (seed, hash_id, str(mutual).lower(), sc_c, said))
print(identity, *keys)
