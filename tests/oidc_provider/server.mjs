// A real OpenID provider (oidc-provider, certified by the OpenID Foundation) with the accounts of a test.
import { readFileSync } from "node:fs";
import { Provider } from "oidc-provider";

const terms = JSON.parse(readFileSync(process.argv[2], "utf8"));
const accounts = new Map(terms.accounts.map((one) => [one.login, one]));
const provider = new Provider(terms.issuer, {
  clients: terms.clients,
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups", "offline_access"],
  // Who reads the ID token alone finds the user in it.
  conformIdTokenClaims: false,
  features: { devInteractions: { enabled: true } },
  pkce: { required: () => true },
  cookies: { keys: ["of the tests alone"] },
  ttl: { IdToken: 300, AccessToken: 300, RefreshToken: 3600, Session: 3600, Grant: 3600, Interaction: 600 },
  async findAccount(_, login) {
    const found = accounts.get(login);
    return found && { accountId: login, claims: async () => ({ sub: login, ...found.claims }) };
  },
});
provider.listen(terms.port, "127.0.0.1", () => console.log("listening"));
