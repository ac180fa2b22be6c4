"use strict"
// What pages can do more with a script: follow what runs, fetch verdicts, copy commands, choose colours. Without it all of them
// can be read and all forms work.
{
  const root = document.documentElement
  root.classList.add("scripts")
  const said = document.getElementById("said")
  const say = words => { said.textContent = words }

  const themes = ["auto", "light", "dark"]
  const button = document.getElementById("theme")
  button?.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length]
    if (next === "auto") delete root.dataset.theme
    else root.dataset.theme = next
    document.cookie = `stackmark-theme=${next}; path=/; max-age=31536000; samesite=strict`
    button.textContent = `Colours: ${next}`
    button.setAttribute("aria-label", `Colours: ${next}. Change`)
  })

  document.addEventListener("click", async event => {
    const copy = event.target.closest("[data-copy]")
    if (!copy) return
    const words = document.getElementById(copy.dataset.copy).textContent
    try {
      await navigator.clipboard.writeText(words)
      say("The command is copied")
      copy.textContent = "Copied"
    } catch {
      // Over plain http on another address browsers have no clipboard: it is selected, for the keyboard.
      getSelection().selectAllChildren(document.getElementById(copy.dataset.copy))
      say("The command is selected: copy it with the keyboard")
      copy.textContent = "Selected"
    }
    setTimeout(() => { copy.textContent = "Copy" }, 2000)
  })

  // Elements of a page of ours; a document that is parsed so runs no script.
  const fetched = async where => {
    const answer = await fetch(where, { headers: { accept: "text/html" }, redirect: "error" })
    if (!answer.ok) throw new Error(String(answer.status))
    return new DOMParser().parseFromString(await answer.text(), "text/html")
  }
  const replace = (id, from) => {
    const old = document.getElementById(id), fresh = from.getElementById(id)
    if (!old || !fresh) return
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null
    const opened = [...old.querySelectorAll("details")].map(one => one.open)
    old.replaceWith(document.adoptNode(fresh))
    fresh.querySelectorAll("details").forEach((one, index) => { if (opened[index]) one.open = true })
    if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus()
  }

  const verdicts = async () => {
    const waiting = [...document.querySelectorAll("[data-verdict]:not([data-asked])")]
    waiting.forEach(one => { one.dataset.asked = "" })
    for (const one of waiting) {
      try {
        const found = await fetched(one.dataset.verdict)
        one.replaceChildren(...[...found.body.childNodes].map(node => document.adoptNode(node)))
        one.classList.remove("quiet")
      } catch {
        one.textContent = "not computed"
      }
    }
  }
  verdicts()

  // One reload at a time; what changes meanwhile makes one more.
  const once = work => {
    let busy = false, again = false
    const go = async () => {
      if (busy) { again = true; return }
      busy = true
      try { await work() } catch { /* the next change tries again */ }
      busy = false
      if (again) { again = false; go() }
    }
    return go
  }

  const list = document.querySelector("[data-list]")
  if (list) {
    const reload = once(async () => {
      replace("list", await fetched(location.href))
      say("The list has changed")
      verdicts()
    })
    const source = new EventSource(list.dataset.list)
    source.addEventListener("change", event => {
      if (JSON.parse(event.data).state !== document.getElementById("list").dataset.state) reload()
    })
  }

  const live = document.querySelector("[data-live]")
  if (live) {
    let ended = null
    const reload = once(async () => {
      const found = await fetched(live.dataset.report)
      replace("report", found)
      replace("runs-table", found)
    })
    const source = new EventSource(live.dataset.live)
    const shown = event => {
      const message = JSON.parse(event.data)
      const lines = new DOMParser().parseFromString(message.html, "text/html")
      document.getElementById("live-lines").replaceChildren(...[...lines.body.childNodes].map(node => document.adoptNode(node)))
      if (ended !== null && message.ended_runs !== ended) { say(`${message.ended_runs} runs have ended`); reload() }
      else if (ended === null) reload()
      ended = message.ended_runs
    }
    source.addEventListener("change", shown)
    source.addEventListener("trouble", event => say(JSON.parse(event.data).said))
    source.addEventListener("ended", event => {
      source.close()
      shown(event)
      reload()
      live.querySelector("h2").textContent = "It has ended"
      say("The experiment has ended")
    })
  }

  for (const form of document.querySelectorAll("form[data-auto]")) {
    let timer = 0
    const reload = once(async () => {
      const where = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`
      replace(form.dataset.auto, await fetched(where))
    })
    form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(reload, 300) })
  }
}
