"""Certificates for tests, made here with openssl."""

from harness import *


class Authority:
    """A certificate authority and what it signed, in the layout that libnbd and nbdkit expect."""

    def __init__(self, directory):
        need("openssl")
        self.dir = directory
        directory.mkdir()
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", "/CN=Test authority", "-keyout", "ca-key.pem", "-out", "ca-cert.pem")
        for name, usage in (("server", "serverAuth"), ("client", "clientAuth")):
            extensions = directory / f"{name}.ext"
            extensions.write_text(
                f"basicConstraints=CA:FALSE\nextendedKeyUsage={usage}\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n"
            )
            self.openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                         "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem",
                         "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", f"{name}-cert.pem")

    def openssl(self, *args):
        run("openssl", *args, cwd=self.dir)

    def without_client_certificate(self):
        """A directory with the authority only."""
        bare = self.dir.with_name(self.dir.name + "-bare")
        bare.mkdir(exist_ok=True)
        shutil.copy(self.dir / "ca-cert.pem", bare)
        return bare
