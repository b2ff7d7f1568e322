/** The frame of all pages: navigation, the caller, keys, theme; or the page to sign in. */
import { useEffect, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { ApiError } from "./api/client.ts";
import { forget } from "./api/resource.ts";
import { Loading } from "./components/basics.tsx";
import { Dialog, Messages, say } from "./components/dialog.tsx";
import { disconnect } from "./live.ts";
import { PAGES, Pages } from "./router.tsx";
import { identity, may, readIdentity, signOut } from "./session.ts";
import { SignInPage } from "./sign_in.tsx";
import { applyTheme, theme, toggleTheme } from "./theme.ts";

export function App() {
  useEffect(() => {
    applyTheme();
    readIdentity();
  }, []);
  if (identity.value === undefined) return <Loading />;
  if (identity.value === null) {
    disconnect();
    forget();
    return <SignInPage />;
  }
  return <Frame />;
}

function Frame() {
  const [location, navigate] = useLocation();
  const [isOpen, setOpen] = useState(false);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const shown = PAGES.filter((one) => one.title && (!one.needs || may(one.needs)));
  useKeys(navigate, () => setHelpOpen(true));
  useEffect(() => {
    setOpen(false);
    document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
  }, [location]);
  const home = shown[0]?.path ?? "/";
  useEffect(() => {
    if (location === "/" && home !== "/") navigate(home, { replace: true });
  }, [location, home]);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <div class="frame">
        <nav class={isOpen ? "open" : ""} aria-label="Pages">
          <div class="brand">
            <Link href={home}>Trainmaster</Link>
            <button
              type="button"
              class="menu"
              aria-expanded={isOpen}
              aria-controls="pages"
              onClick={() => setOpen(!isOpen)}
            >
              Menu
            </button>
          </div>
          <ul id="pages">
            {shown.map((one) => (
              <li key={one.path}>
                <Link href={one.path} aria-current={isCurrent(one.path, location) ? "page" : undefined}>
                  {one.title}
                </Link>
              </li>
            ))}
          </ul>
          <Caller showHelp={() => setHelpOpen(true)} />
        </nav>
        <main id="main" tabIndex={-1}>
          <Pages />
        </main>
      </div>
      <Messages />
      {isHelpOpen && <Keys close={() => setHelpOpen(false)} />}
    </>
  );
}

function isCurrent(path: string, location: string): boolean {
  return path === "/" ? location === "/" : location === path || location.startsWith(`${path}/`);
}

async function leave(): Promise<void> {
  try {
    await signOut();
  } catch (problem) {
    if (problem instanceof ApiError) say(problem.message, true);
  }
}

function Caller({ showHelp }: { showHelp: () => void }) {
  const me = identity.value;
  if (!me) return null;
  const roles = me.roles?.length ? me.roles.map((one) => one.role).join(", ") : me.role;
  return (
    <div class="caller">
      <p>
        <strong>{me.name}</strong>
        <br />
        <span class="muted">{roles}</span>
      </p>
      <button
        type="button"
        class="quiet"
        onClick={toggleTheme}
        aria-label={theme.value === "dark" ? "Light theme" : "Dark theme"}
      >
        {theme.value === "dark" ? "Light" : "Dark"}
      </button>
      <button type="button" class="quiet" onClick={showHelp} aria-label="? Keys">
        ?
      </button>
      <button type="button" class="quiet" onClick={leave}>
        Sign out
      </button>
      <p class="muted">Release {me.version}</p>
    </div>
  );
}

/** Opens pages by `g` and a letter, the search by `/`, and the list of keys by `?`. */
function useKeys(navigate: (to: string) => void, showHelp: () => void): void {
  useEffect(() => {
    let isAfterG = false;
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (target.matches("input, select, textarea, [contenteditable], .cm-content")) return;
      if (isAfterG) {
        isAfterG = false;
        const page = PAGES.find((one) => one.key === event.key && (!one.needs || may(one.needs)));
        if (page) navigate(page.path);
      } else if (event.key === "g") {
        isAfterG = true;
        setTimeout(() => {
          isAfterG = false;
        }, 1500);
      } else if (event.key === "?") {
        showHelp();
      } else if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLElement>("[data-first], search input")?.focus();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [navigate]);
}

function Keys({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys" close={close}>
      <dl class="pairs">
        {PAGES.filter((one) => one.title && (!one.needs || may(one.needs))).map((one) => (
          <div key={one.path}>
            <dt>
              <kbd>g</kbd> <kbd>{one.key}</kbd>
            </dt>
            <dd>{one.title}</dd>
          </div>
        ))}
        <div>
          <dt>
            <kbd>/</kbd>
          </dt>
          <dd>Search</dd>
        </div>
        <div>
          <dt>
            <kbd>?</kbd>
          </dt>
          <dd>This list</dd>
        </div>
      </dl>
      <div class="actions">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
