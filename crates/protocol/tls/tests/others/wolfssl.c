/* wolfssl PORT IDENTITY KEY SUITE: a client of TLS 1.3 on loopback with this pre-shared key, in
 * hexadecimal, and this cipher suite. Sends the lines of its standard input to the server, and
 * prints the server's output. */
#include <wolfssl/options.h>
#include <wolfssl/ssl.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **arguments;

static unsigned int give_key(WOLFSSL *ssl, const char *hint, char *identity, unsigned int most,
                             unsigned char *key, unsigned int most_key, const char **suite)
{
    unsigned int length = strlen(arguments[3]) / 2;
    (void)ssl, (void)hint;
    if (strlen(arguments[2]) >= most || length > most_key)
        return 0;
    strcpy(identity, arguments[2]);
    for (unsigned int at = 0; at < length; at++)
        sscanf(arguments[3] + 2 * at, "%2hhx", &key[at]);
    *suite = arguments[4];
    return length;
}

static void end(WOLFSSL *ssl, const char *what)
{
    char text[WOLFSSL_MAX_ERROR_SZ];
    fprintf(stderr, "%s: %s\n", what, wolfSSL_ERR_error_string(wolfSSL_get_error(ssl, 0), text));
    exit(1);
}

int main(int count, char **given)
{
    struct sockaddr_in place = { .sin_family = AF_INET };
    char line[4096];
    if (count != 5)
        return 2;
    arguments = given;
    place.sin_port = htons(atoi(given[1]));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    wolfSSL_Init();
    WOLFSSL_CTX *context = wolfSSL_CTX_new(wolfTLSv1_3_client_method());
    wolfSSL_CTX_set_psk_client_tls13_callback(context, give_key);
    wolfSSL_CTX_set_cipher_list(context, given[4]);
    WOLFSSL *ssl = wolfSSL_new(context);
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, (struct sockaddr *)&place, sizeof place) != 0)
        return perror("connect"), 1;
    wolfSSL_set_fd(ssl, socket_);
    if (wolfSSL_connect(ssl) != WOLFSSL_SUCCESS)
        end(ssl, "handshake");
    fprintf(stderr, "%s\n", wolfSSL_get_cipher_name(ssl));
    while (fgets(line, sizeof line, stdin)) {
        int length = strlen(line), back = 0;
        if (wolfSSL_write(ssl, line, length) != length)
            end(ssl, "write");
        while (back < length) {
            int some = wolfSSL_read(ssl, line, sizeof line);
            if (some <= 0)
                end(ssl, "read");
            if (write(1, line, some) != some)
                return 1;
            back += some;
        }
    }
    wolfSSL_shutdown(ssl);
    return 0;
}
